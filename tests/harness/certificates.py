# SPDX-License-Identifier: Apache-2.0
"""Certificates for tests of TLS, made with openssl."""

import shutil
import subprocess
from pathlib import Path
from typing import Final

AVAILABLE: Final = shutil.which("openssl") is not None


def make(folder: Path) -> None:
    """Make ``ca``, which signed ``server`` and ``client``, and ``stranger-ca``, which signed ``stranger``.

    Each is a pair of NAME.pem and NAME.key; the certificates are good for localhost and 127.0.0.1.
    """
    for authority in ("ca", "stranger-ca"):
        _openssl(
            folder, "req", "-x509", "-nodes", *_key(authority), "-out", f"{authority}.pem", *_name(authority)
        )
    for name, authority in (("server", "ca"), ("client", "ca"), ("stranger", "stranger-ca")):
        _openssl(folder, "req", "-nodes", *_key(name), "-out", f"{name}.csr", *_name(name))
        (folder / "names").write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        signer = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-CAcreateserial"]
        request = ["-req", "-in", f"{name}.csr", "-extfile", "names", "-days", "2"]
        _openssl(folder, "x509", *request, *signer, "-out", f"{name}.pem")


def _key(name: str) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-keyout", f"{name}.key"]


def _name(name: str) -> list[str]:
    return ["-subj", f"/CN={name}"]


def _openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)
