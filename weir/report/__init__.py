# SPDX-License-Identifier: Apache-2.0
"""Parts of all that commands show: numbers in words, tables, parts of pictures."""
