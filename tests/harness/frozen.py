# SPDX-License-Identifier: Apache-2.0
"""Imported last by the server that test processes are forked from: collections leave out its objects."""

import gc

gc.freeze()
