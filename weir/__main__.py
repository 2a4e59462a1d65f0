# SPDX-License-Identifier: Apache-2.0
"""``python -m weir``: the same as ``weir``."""

from weir.cli import main

if __name__ == "__main__":
    main()
