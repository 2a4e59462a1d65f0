# SPDX-License-Identifier: Apache-2.0
"""The cache of generated C: nothing that decides the text is left out of its key."""

import subprocess
import sys

from weir.softswitch.runtime.compiler import RUNTIME, generator_sources

_IMPORTED = """
import sys
import weir.softswitch.codegen.module
for name, module in sys.modules.items():
    if name.startswith("weir.softswitch.") and module.__file__:
        print(module.__file__)
"""


def test_every_module_that_generation_imports_counts() -> None:
    done = subprocess.run([sys.executable, "-c", _IMPORTED], capture_output=True, text=True, check=True)
    imported = set(done.stdout.split())
    assert str(RUNTIME.parent / "codegen" / "module.py") in imported
    assert imported <= {str(path) for path in generator_sources()}
