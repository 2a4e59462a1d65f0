# SPDX-License-Identifier: Apache-2.0
"""The image of deploy/image.py is what its digests say, and runs a hub without root, compiler or daemon."""

import gzip
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.harness.ports import free_port

MOST = 150_000_000  # bytes


@pytest.fixture
def image() -> tarfile.TarFile:
    """Return the archive."""
    path = os.environ.get("WEIR_IMAGE")
    if not path:
        pytest.skip("needs WEIR_IMAGE: the archive that make image builds")
    assert Path(path).stat().st_size <= MOST
    return tarfile.open(path)


def read(image: tarfile.TarFile, name: str) -> bytes:
    file = image.extractfile(name)
    assert file is not None
    return file.read()


def blob(image: tarfile.TarFile, descriptor: dict[str, Any]) -> bytes:
    """Return a blob, which has the size and the digest of its descriptor."""
    content = read(image, f"blobs/{descriptor['digest'].replace(':', '/')}")
    assert len(content) == descriptor["size"]
    assert descriptor["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    return content


def test_it_runs_a_hub(image: tarfile.TarFile, tmp_path: Path) -> None:
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("needs user namespaces")
    assert json.loads(read(image, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
    manifest = json.loads(blob(image, json.loads(read(image, "index.json"))["manifests"][0]))
    config = json.loads(blob(image, manifest["config"]))
    (layer,) = manifest["layers"]
    content = gzip.decompress(blob(image, layer))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    archive, root = tmp_path / "layer.tar", tmp_path / "root"
    archive.write_bytes(content)
    with tarfile.open(archive) as opened:
        opened.extractall(root, filter="tar")
    script = 'for d in proc dev; do mount --rbind /$d "$0/$d"; done; root="$0"; exec chroot "$root" "$@"'
    address, udp = f"127.0.0.1:{free_port()}", free_port(socket.SOCK_DGRAM)
    entry = config["config"]["Entrypoint"]
    hub = [*entry, "hub", "--workers", "1", "--listen", address, "--udp", str(udp)]
    command = ["unshare", "-rm", "sh", "-c", script, str(root), *hub]
    environment = dict(each.split("=", 1) for each in config["config"]["Env"])
    with subprocess.Popen(command, env=environment | {"PATH": os.environ["PATH"]}) as process:
        try:
            deadline = time.monotonic() + 60
            while (found := join(address)).returncode:
                assert process.poll() is None and time.monotonic() < deadline, found.stderr
                time.sleep(0.2)
        finally:
            process.terminate()
    assert [port["udp_port"] for port in json.loads(found.stdout)] == [udp]


def join(address: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "weir", "join", address, "--json"]
    return subprocess.run(command, capture_output=True, text=True, check=False)
