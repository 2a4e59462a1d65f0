# SPDX-License-Identifier: Apache-2.0
"""Build an OCI image with the `weir` command, without torch, for hub, controller and switch, as any user.

    python deploy/wheels.py --out wheels && python deploy/image.py --wheels wheels --out weir.tar

It takes Python and libraries from Debian by this machine's `apt-get`, and Weir's dependencies by pip.
`podman load`, `docker load` and `skopeo` read the archive.
"""

import argparse
import gzip
import hashlib
import io
import json
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement

PYTHON: Final = "3.11"
DEBIAN: Final = (
    *("libc6", "libcrypt1", "libgcc-s1", "libstdc++6", "zlib1g", "libbz2-1.0", "liblzma5", "libexpat1"),
    *("libffi8", "libssl3", "libsqlite3-0", "libuuid1", "netbase", "base-files"),
    *(f"{part}{PYTHON}{rest}" for part, rest in (("python", "-minimal"), ("libpython", "-minimal"))),
    f"libpython{PYTHON}-stdlib",
)
ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
"""What Debian and OCI call a machine."""

NOT_NEEDED: Final = frozenset({"torch", "numpy", "softp4"})
"""Dependencies of training alone, and the other wheel."""

USER: Final = 65532
ENVIRONMENT: Final = ("PATH=/usr/bin", "PYTHONPATH=/opt/weir", "HOME=/home/weir", "LANG=C.UTF-8")


def download(machine: str, folder: Path) -> None:
    """Download Debian's packages for a machine.

    Args:
        machine: x86_64 or aarch64.
        folder: Where they are put.
    """
    apt = ["apt-get", "--quiet"]
    if machine != platform.machine():  # which other packages there are is not known to this system
        architecture = ARCHITECTURES[machine]
        apt += [f"-oAPT::Architecture={architecture}", f"-oAPT::Architectures::={architecture}"]
        for place in ("Lists", "Cache"):
            (folder / place).mkdir()
        apt += [f"-oDir::State::Lists={folder}/Lists", f"-oDir::Cache={folder}/Cache"]
        subprocess.run([*apt, "update"], check=True)
    subprocess.run([*apt, "download", *DEBIAN], cwd=folder, check=True)


def needed(wheel: Path) -> Iterator[str]:
    """Yield what pip installs beside Weir's wheel: the dependencies of its controller, without torch."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        found = message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    for each in map(Requirement, found):
        wanted = each.marker is None or each.marker.evaluate({"extra": "controller"})
        if wanted and each.name not in NOT_NEEDED:
            yield f"{each.name}{each.specifier}"


def root_filesystem(root: Path, wheels: list[Path], machine: str) -> None:
    """Fill a folder with what the image holds.

    Args:
        root: An empty folder.
        wheels: The switch's wheel, and Weir's.
        machine: x86_64 or aarch64.
    """
    with tempfile.TemporaryDirectory() as folder:
        download(machine, Path(folder))
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    for useless in ("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/locale"):
        subprocess.run(["rm", "-rf", str(root / useless)], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(root / "opt/weir")]
    pip += ["--no-compile", "--python-version", PYTHON, "--only-binary=:all:"]
    pip += [f"--platform=manylinux_{glibc}_{machine}" for glibc in ("2_28", "2_17")]
    pip += [f"--platform=manylinux2014_{machine}"]
    subprocess.run([*pip, *needed(wheels[-1])], check=True)
    subprocess.run([*pip, "--upgrade", "--no-deps", *map(str, wheels)], check=True)
    compiled(root)
    for place in ("tmp", "home/weir", "etc", "proc", "sys", "dev"):
        (root / place).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text(f"root:x:0:0::/:/\nweir:x:{USER}:{USER}::/home/weir:/\n")
    (root / "etc/group").write_text(f"root:x:0:\nweir:x:{USER}:\n")


def compiled(root: Path) -> None:
    """Compile all Python in an image's folder, for good: the layer has no times to compare with sources."""
    command = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    places = [str(root / "usr/lib" / f"python{PYTHON}"), str(root / "opt/weir")]
    subprocess.run([*command, "-s", str(root), "-p", "/", *places], check=True)


def layer(root: Path) -> bytes:
    """Return a folder as a tar archive that depends on its content alone.

    All files are root's: rootless tools without a range of user ids can unpack no other.
    """

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        if entry.name in ("tmp", "home/weir"):
            entry.mode = 0o1777
        return entry

    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for path in sorted(root.rglob("*")):
            archive.add(path, str(path.relative_to(root)), recursive=False, filter=owned)
    return content.getvalue()


class Layout:
    """An OCI image layout (image-spec 1.1) in an archive.

    Args:
        path: The archive.
    """

    def __init__(self, path: Path) -> None:
        self._archive = tarfile.open(path, "w")  # noqa: SIM115
        self._add("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())

    def _add(self, name: str, content: bytes) -> None:
        entry = tarfile.TarInfo(name)
        entry.size = len(content)
        self._archive.addfile(entry, io.BytesIO(content))

    def blob(self, kind: str, content: bytes) -> dict[str, Any]:
        """Add a blob and return its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        self._add(_place(digest), content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def finish(self, manifest: dict[str, Any], config: str, layers: list[str], name: str) -> None:
        """Add the index, and the one that `docker load` reads, and close the archive.

        Args:
            manifest: Descriptor of the manifest.
            config: Digest of the configuration.
            layers: Digests of the layers.
            name: Name of the image with its tag.
        """
        names = {
            "org.opencontainers.image.ref.name": name,
            "io.containerd.image.name": f"docker.io/library/{name}",
        }
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [manifest | {"annotations": names}],
        }
        self._add("index.json", json.dumps(index).encode())
        dockers = {"Config": _place(config), "RepoTags": [name], "Layers": [_place(each) for each in layers]}
        self._add("manifest.json", json.dumps([dockers]).encode())
        self._archive.close()


def _place(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def write(root: Path, out: Path, machine: str, version: str) -> None:
    """Write a folder as an image of a machine."""
    kind = "application/vnd.oci.image"
    content = layer(root)
    layout = Layout(out)
    compressed = layout.blob(f"{kind}.layer.v1.tar+gzip", gzip.compress(content, mtime=0))
    settings = {
        "architecture": ARCHITECTURES[machine],
        "os": "linux",
        "config": {
            "User": f"{USER}:{USER}",
            "Env": list(ENVIRONMENT),
            "Entrypoint": [f"/usr/bin/python{PYTHON}", "-m", "weir"],
            "Cmd": ["--help"],
            "WorkingDir": "/home/weir",
            "Labels": {
                "org.opencontainers.image.licenses": "Apache-2.0",
                "org.opencontainers.image.title": "Weir",
                "org.opencontainers.image.version": version,
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    config = layout.blob(f"{kind}.config.v1+json", json.dumps(settings).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": config,
        "layers": [compressed],
    }
    layout.finish(
        layout.blob(f"{kind}.manifest.v1+json", json.dumps(manifest).encode()),
        config["digest"],
        [compressed["digest"]],
        f"weir:{version}",
    )


def main() -> None:
    """Build the image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of both wheels")
    parser.add_argument("--machine", choices=sorted(ARCHITECTURES), default=platform.machine())
    parser.add_argument("--out", type=Path, default=Path("weir.tar"), help="the archive")
    options = parser.parse_args()
    if sys.version_info[:2] != tuple(map(int, PYTHON.split("."))):
        sys.exit(f"the image has Python {PYTHON}, and this one is {platform.python_version()}: use {PYTHON}")
    wheels = sorted(options.wheels.glob(f"*{options.machine}.whl"))
    if [wheel.name.partition("-")[0] for wheel in wheels] != ["softp4", "weir_ina"]:
        sys.exit(f"{options.wheels} must hold one wheel of softp4 and one of weir-ina for {options.machine}")
    with tempfile.TemporaryDirectory() as folder:
        root_filesystem(Path(folder), wheels, options.machine)
        write(Path(folder), options.out, options.machine, wheels[-1].name.split("-")[1])
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
