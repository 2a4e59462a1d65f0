# SPDX-License-Identifier: Apache-2.0
"""Parts of all that commands show: numbers as text, tables, parts of pictures."""
