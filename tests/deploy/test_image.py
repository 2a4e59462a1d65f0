# SPDX-License-Identifier: Apache-2.0
"""The image of deploy/image.py is what its digests say, and sums without root, compiler or daemon."""

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.ports import free_port, udp_ports
from tests.harness.typed import blocks

ROOT = Path(__file__).resolve().parents[2]
MOST = 150_000_000  # bytes
LIMIT_S = 60.0

# Root of a user namespace mounts what a container has; the image's user in a second one runs the command.
RUN = """
for each in proc dev; do mount --rbind /$each "$0/$each"; done
for each in tmp home/weir; do mount -t tmpfs tmpfs "$0/$each"; done
root=$0 user=$1 home=$2
shift 2
exec unshare --user --map-user="$user" --map-group="$user" --root="$root" --wd="$home" "$@"
"""


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


@dataclass(frozen=True)
class Image:
    """An unpacked image.

    Attributes:
        root: Folder of its files.
        config: Its settings.
    """

    root: Path
    config: dict[str, Any]

    @contextlib.contextmanager
    def runs(self, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
        """Run a `weir` command in a container, as the image's user, with the files of the image alone."""
        user = self.config["User"].partition(":")[0]
        command = ["unshare", "-rm", "sh", "-ec", RUN, str(self.root), user, self.config["WorkingDir"]]
        environment = dict(each.split("=", 1) for each in self.config["Env"])
        with subprocess.Popen(
            [*command, *self.config["Entrypoint"], *arguments],
            env=environment | {"PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                yield process
            finally:
                process.terminate()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """Return the image, whose digests and sizes are right."""
    path = os.environ.get("WEIR_IMAGE")
    if not path:
        pytest.skip("needs WEIR_IMAGE: the archive that make image builds")
    if not shutil.which("unshare") or subprocess.run(["unshare", "-rm", "true"], check=False).returncode:
        pytest.skip("needs user namespaces")
    assert Path(path).stat().st_size <= MOST
    with tarfile.open(path) as archive:
        assert json.loads(read(archive, "oci-layout")) == {"imageLayoutVersion": "1.0.0"}
        (described,) = json.loads(read(archive, "index.json"))["manifests"]
        manifest = json.loads(blob(archive, described))
        settings = json.loads(blob(archive, manifest["config"]))
        (layer,) = manifest["layers"]
        content = gzip.decompress(blob(archive, layer))
        (dockers,) = json.loads(read(archive, "manifest.json"))
    name = described["annotations"]["org.opencontainers.image.ref.name"]
    places = [f"blobs/{each['digest'].replace(':', '/')}" for each in (manifest["config"], layer)]
    assert dockers == {"Config": places[0], "RepoTags": [name], "Layers": places[1:]}
    assert settings["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content).hexdigest()}"]
    root = tmp_path_factory.mktemp("image")
    subprocess.run(["tar", "-x", "--no-same-owner", "-C", str(root)], input=content, check=True)
    return Image(root, settings["config"])


def weir(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of this checkout."""
    command = [sys.executable, "-m", "weir", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def until(process: "subprocess.Popen[str]", *command: str) -> str:
    """Repeat a command of this checkout until it succeeds, and return what it prints."""
    deadline = time.monotonic() + LIMIT_S
    while (done := weir(*command)).returncode:
        if process.poll() is not None or time.monotonic() > deadline:
            process.terminate()
            raise AssertionError(f"{done.stderr}\n{process.communicate()[0]}")
        time.sleep(0.2)
    return done.stdout


def first_sum(controller: str, folder: Path) -> str:
    """Run the script of the page about installation with two ranks, and return what it prints."""
    script = folder / "first_sum.py"
    script.write_text(blocks(ROOT / "docs/start/install.md", "python")[0])
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    done = subprocess.run(
        [sys.executable, *launcher, str(script)],
        env={**os.environ, "WEIR_CONTROLLER": controller},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_hub_sums(image: Image, tmp_path: Path) -> None:
    address, udp = f"127.0.0.1:{free_port()}", udp_ports(2)
    with image.runs("hub", "--workers", "2", "--listen", address, "--udp", str(udp)) as hub:
        found = json.loads(until(hub, "join", address, "--json"))
        assert [port["udp_port"] for port in found] == [udp, udp + 1]
        assert first_sum(address, tmp_path).count("[3.0, 3.0, 3.0, 3.0]") == 2


def test_a_switch_and_a_controller_in_containers_of_their_own_sum(image: Image, tmp_path: Path) -> None:
    address, grpc, udp = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}", udp_ports(2)
    (image.root / "etc/secret").write_text("5a" * 32)
    hosts = [
        {"name": f"h{n}", "switch": "s1", "port": n, "ip": f"10.0.0.{n}", "mac": f"02:00:00:00:00:0{n}",
         "claimed": udp + n - 1} for n in (1, 2)
    ]  # fmt: skip
    claims = {"secret": "/etc/secret", "host": "127.0.0.1"}
    switches = [{"name": "s1", "grpc": grpc, "target": "soft", "claimed": claims}]
    (image.root / "etc/topology.json").write_text(json.dumps({"switches": switches, "hosts": hosts}))
    ports = (f"--port={n}=claim:127.0.0.1:{udp + n - 1}:/etc/secret" for n in (1, 2))
    run = ("controller", "run", "/etc/topology.json", "--listen", address)
    with image.runs("switch", "--grpc", grpc, *ports), image.runs(*run) as controller:
        until(controller, "join", address)
        assert first_sum(address, tmp_path).count("[3.0, 3.0, 3.0, 3.0]") == 2
