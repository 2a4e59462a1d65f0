# SPDX-License-Identifier: Apache-2.0
"""The documentation builds as a site, without a warning; its pages load nothing from the network."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MISSING = [name for name in ("sphinx", "myst_parser", "furo") if importlib.util.find_spec(name) is None]


@pytest.mark.long
@pytest.mark.skipif(bool(MISSING), reason=f"needs the extra docs: {', '.join(MISSING)}")
@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "doctrees"), "-c", "docs", ".", str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {str(path.relative_to(site)): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    first = pages["docs/index.html"]
    assert "When not to use Weir" in first and "<img" in first
    assert 'href="start/install.html"' in first and 'href="../softswitch/docs/switch.html"' in first
    assert "lane_bits" in pages["docs/reference/command-line.html"]
    assert 'id="weir.torch.HookState"' in pages["docs/reference/api.html"]
    fetched = re.compile(
        r"<(?:script|img|iframe)[^>]*\ssrc=\"(?:https?:)?//|<link[^>]*rel=\"stylesheet\"[^>]*href=\"https?:"
    )
    assert not [name for name, text in pages.items() if fetched.search(text)]
