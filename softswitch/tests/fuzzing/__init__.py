# SPDX-License-Identifier: Apache-2.0
"""Fuzzing of the loader, the generator, generated code and the runtime.

``python -m tests.fuzzing --minutes 30`` runs it for as long as you like; the tests run some
seconds of the same.
"""
