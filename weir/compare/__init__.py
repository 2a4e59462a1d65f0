# SPDX-License-Identifier: Apache-2.0
"""``weir compare``: methods side by side on the same model, data, seeds and network."""
