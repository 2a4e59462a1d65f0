# SPDX-License-Identifier: Apache-2.0
"""The switch beside BMv2: lookups in large tables (``lookups``), entries over P4Runtime (``requests``).

``python -m softp4.bench lookups`` and ``python -m softp4.bench requests`` print what they measure.
"""
