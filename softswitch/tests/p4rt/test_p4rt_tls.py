# SPDX-License-Identifier: Apache-2.0
"""P4Runtime over TLS: the controller knows the switch, and with mutual TLS the switch the controller."""

from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from softp4.channels import open_channel
from softp4.device import Device
from softp4.p4rt.server import ServerError, Tls
from tests.harness import certificates
from tests.p4rt.p4rt_client import Controller


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    certificates.make(folder)
    return folder


@pytest.fixture
def tls_only(keys: Path) -> Iterator[str]:
    """Yield the address of a switch that shows a certificate and asks for none."""
    with Device() as device:
        yield device.serve("127.0.0.1:0", Tls(keys / "server.pem", keys / "server.key"))


@pytest.fixture
def mutual(keys: Path) -> Iterator[str]:
    """Yield the address of a switch that lets in whom the authority has signed."""
    with Device() as device:
        yield device.serve("127.0.0.1:0", Tls(keys / "server.pem", keys / "server.key", keys / "ca.pem"))


def _reached(address: str, keys: Path, authority: str | None, name: str | None = None) -> bool:
    """Return whether a client gets through that trusts this authority (None: no TLS) and shows this
    certificate.
    """
    if authority is None:
        channel = open_channel(address)
    else:
        channel = open_channel(address, certificates.credentials(keys, authority, name))
    with channel:
        try:
            return Controller.capabilities(channel) == "1.5.0"
        except grpc.RpcError as error:
            assert error.code() == grpc.StatusCode.UNAVAILABLE, error
            return False


def test_the_controller_knows_the_switch(tls_only: str, keys: Path) -> None:
    assert _reached(tls_only, keys, "ca")
    assert _reached(tls_only, keys, "ca", "stranger"), "nobody asked the client for a certificate"
    assert not _reached(tls_only, keys, "stranger-ca")
    assert not _reached(tls_only, keys, None)


def test_the_switch_knows_the_controller(mutual: str, keys: Path) -> None:
    assert _reached(mutual, keys, "ca", "client")
    assert not _reached(mutual, keys, "ca", "stranger")
    assert not _reached(mutual, keys, "ca")
    assert not _reached(mutual, keys, "stranger-ca", "client")
    assert not _reached(mutual, keys, None)


def test_a_session_over_mutual_tls(mutual: str, keys: Path) -> None:
    controller = Controller(mutual, credentials=certificates.credentials(keys, "ca", "client"))
    controller.push()
    controller.write("INSERT", table_entry=controller.station(1))
    assert controller.read(table_entry=controller.entry("stations")) == [controller.station(1)]
    controller.close()


@pytest.mark.parametrize(
    ("tls", "message"),
    [
        (("nowhere.pem", "server.key", None), r"cannot read .*nowhere.pem: No such file"),
        (("server.pem", "client.key", None), r"server.pem with key .*client.key.*KEY_VALUES_MISMATCH"),
        (("junk.pem", "server.key", None), r"junk.pem"),
        (("server.pem", "server.key", "junk.pem"), r"authority .*junk.pem"),
    ],
)
def test_bad_files_are_named(keys: Path, tls: tuple[str, str, str | None], message: str) -> None:
    (keys / "junk.pem").write_text("no certificate")
    cert, key, authority = tls
    files = Tls(keys / cert, keys / key, None if authority is None else keys / authority)
    with Device() as device, pytest.raises(ServerError, match=message):
        device.serve("127.0.0.1:0", files)
