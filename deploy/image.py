# SPDX-License-Identifier: Apache-2.0
"""Build an OCI image with the `weir` command, without torch, for hub, controller and switch, as any user.

    python deploy/wheels.py --out wheels && python deploy/image.py --wheels wheels --out weir.tar

It takes Python and libraries from this machine's Debian (`apt-get download`), and Weir's dependencies by pip.
`podman load` and `docker load` read the archive.
"""

import argparse
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any, Final

PYTHON: Final = "3.11"
DEBIAN: Final = (
    *(
        "libc6",
        "libcrypt1",
        "libgcc-s1",
        "libstdc++6",
        "zlib1g",
        "libbz2-1.0",
        "liblzma5",
        "libexpat1",
        "libffi8",
    ),
    *("libssl3", "libsqlite3-0", "libuuid1", "netbase", "base-files"),
    *(f"{part}{PYTHON}{rest}" for part, rest in (("python", "-minimal"), ("libpython", "-minimal"))),
    f"libpython{PYTHON}-stdlib",
)
NEEDED: Final = (
    "grpcio>=1.60",
    "protobuf>=3.20.3",
    "pydantic>=2.6",
    "rich>=13.7",
    "typer>=0.12",
    "pyyaml>=6",
)
USER: Final = 65532
ENVIRONMENT: Final = ("PATH=/usr/bin", "PYTHONPATH=/opt/weir", "HOME=/home/weir", "LANG=C.UTF-8")


def root_filesystem(root: Path, wheels: Path) -> None:
    """Fill a folder with what the image holds.

    Args:
        root: An empty folder.
        wheels: A folder with both wheels.
    """
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["apt-get", "download", "--quiet", *DEBIAN], cwd=folder, check=True)
        for package in sorted(Path(folder).glob("*.deb")):
            subprocess.run(["dpkg-deb", "--extract", str(package), str(root)], check=True)
    for useless in ("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/locale"):
        subprocess.run(["rm", "-rf", str(root / useless)], check=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(root / "opt/weir")]
    pip += ["--python-version", PYTHON, "--only-binary=:all:"]
    subprocess.run([*pip, *NEEDED], check=True)
    subprocess.run([*pip, "--no-deps", *map(str, sorted(wheels.glob("*.whl")))], check=True)
    for place in ("tmp", "home/weir", "etc", "proc", "sys", "dev"):
        (root / place).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text(f"root:x:0:0::/:/\nweir:x:{USER}:{USER}::/home/weir:/\n")
    (root / "etc/group").write_text(f"root:x:0:\nweir:x:{USER}:\n")


def layer(root: Path) -> bytes:
    """Return a folder as a tar archive that depends on its content alone."""

    def owned(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = USER if entry.name == "home/weir" else 0
        entry.uname = entry.gname = ""
        entry.mtime = 0
        if entry.name == "tmp":
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
        self._add(f"blobs/sha256/{digest}", content)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}

    def finish(self, manifest: dict[str, Any], name: str) -> None:
        """Add the index, and close the archive."""
        named = manifest | {"annotations": {"org.opencontainers.image.ref.name": name}}
        index = {
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [named],
        }
        self._add("index.json", json.dumps(index).encode())
        self._archive.close()


def write(root: Path, out: Path, name: str) -> None:
    """Write a folder as an image."""
    kind = "application/vnd.oci.image"
    content = layer(root)
    layout = Layout(out)
    compressed = layout.blob(f"{kind}.layer.v1.tar+gzip", gzip.compress(content, mtime=0))
    config = {
        "architecture": "amd64",
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
            },
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(content).hexdigest()}"]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": f"{kind}.manifest.v1+json",
        "config": layout.blob(f"{kind}.config.v1+json", json.dumps(config).encode()),
        "layers": [compressed],
    }
    layout.finish(layout.blob(f"{kind}.manifest.v1+json", json.dumps(manifest).encode()), name)


def main() -> None:
    """Build the image."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--wheels", type=Path, required=True, help="folder of both wheels")
    parser.add_argument("--out", type=Path, default=Path("weir.tar"), help="the archive")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root_filesystem(Path(folder), options.wheels)
        write(Path(folder), options.out, "weir:0.1.0")
    print(f"{options.out}: {options.out.stat().st_size / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
