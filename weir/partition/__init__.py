# SPDX-License-Identifier: Apache-2.0
"""``weir partition``: where samples and parameters of a sparse linear model are to lie."""
