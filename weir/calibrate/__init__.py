# SPDX-License-Identifier: Apache-2.0
"""``weir calibrate``: how much of a gradient a model can miss, by layer class and magnitude class."""
