# SPDX-License-Identifier: Apache-2.0
"""A certificate that is no good is named, with its dates and its file: on this side, or on the other one."""

import socket
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from trustme import CA

from weir.agent_service.certificates import connection_problem, file_problem, of_authorities, of_pair
from weir.agent_service.client import AgentClient, AgentError, ControllerUnreachable
from weir.agent_service.tls import TlsError, TlsFiles
from weir.controller.switch_client import SwitchClient, SwitchError
from weir.controller.wiring import Switch, SwitchTls

NOW = datetime.now(UTC)
DAY = timedelta(days=1)
YESTERDAY, TOMORROW = (NOW - DAY).strftime("%d %b %Y"), (NOW + DAY).strftime("%d %b %Y")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with certificates of one authority: good, expired, future, elsewhere; and another's."""
    folder, authority = tmp_path_factory.mktemp("keys"), CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    CA().cert_pem.write_to_path(folder / "other-ca.pem")

    def make(name: str, identity: str, begins: datetime | None, ends: datetime | None) -> None:
        made = authority.issue_cert(identity, not_before=begins, not_after=ends)
        made.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
        made.private_key_pem.write_to_path(folder / f"{name}.key")

    make("good", "localhost", None, None)
    make("expired", "localhost", NOW - 30 * DAY, NOW - DAY)
    make("future", "localhost", NOW + DAY, NOW + 30 * DAY)
    make("elsewhere", "switch.example.org", None, None)
    return folder


def pair(keys: Path, name: str, authority: str = "ca") -> TlsFiles:
    return TlsFiles(keys / f"{name}.pem", keys / f"{name}.key", keys / f"{authority}.pem")


@contextmanager
def serving(keys: Path, name: str, address: str = "localhost:0", mutual: bool = True) -> Iterator[str]:
    """Yield the address of a server whose certificate may have expired since it began."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    ca = (keys / "ca.pem").read_bytes()
    mine = [((keys / f"{name}.key").read_bytes(), (keys / f"{name}.pem").read_bytes())]
    port = server.add_secure_port(address, grpc.ssl_server_credentials(mine, ca if mutual else None, mutual))
    server.start()
    try:
        yield address if address.startswith("unix:") else f"localhost:{port}"
    finally:
        server.stop(None).wait()


CASES = [
    ("expired", "ca", f"expired on .*{YESTERDAY}.* renew it there"),
    ("future", "ca", f"is not valid before .*{TOMORROW}"),
    ("elsewhere", "ca", r"is for switch\.example\.org, not for localhost"),
    ("good", "other-ca", r"was signed by Testing CA .*, which is none of .*other-ca\.pem"),
]


@pytest.mark.parametrize(("server", "authority", "says"), CASES)
def test_what_is_wrong_with_the_servers_certificate_is_said(
    keys: Path, server: str, authority: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weir.agent_service.client.CONNECT_TIMEOUT_S", 0.2)
    with serving(keys, server) as address:
        tls = pair(keys, "good", authority)
        with AgentClient(address, tls) as agent, pytest.raises(ControllerUnreachable, match=says) as caught:
            agent.status()
        assert address in str(caught.value)
        switch = Switch(name="s1", grpc=address, tls=SwitchTls(ca=tls.ca, cert=tls.cert, key=tls.key))
        with pytest.raises(SwitchError, match=f"switch s1 at {address} cannot be reached: .*{says}"):
            SwitchClient(switch, 1)


@pytest.mark.parametrize("mutual", [False, True])
def test_what_is_good_is_not_complained_about(keys: Path, tmp_path: Path, mutual: bool) -> None:
    for place in ("localhost:0", f"unix:{tmp_path}/socket"):
        with serving(keys, "good", place, mutual) as address:
            assert pair(keys, "good").problem(address) == ""


def test_of_whom_nobody_answers_nothing_is_said(keys: Path) -> None:
    assert pair(keys, "good").problem("127.0.0.1:1") == ""


def test_a_server_without_tls_is_said_to_have_none(keys: Path) -> None:
    server = grpc.server(futures.ThreadPoolExecutor(2))
    address = f"localhost:{server.add_insecure_port('localhost:0')}"
    server.start()
    try:
        assert "does not speak TLS" in pair(keys, "good").problem(address)
    finally:
        server.stop(None).wait()


def test_a_server_that_says_nothing_is_not_waited_for(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.agent_service.certificates.PROBE_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert connection_problem(f"127.0.0.1:{silent.getsockname()[1]}", None, None, keys / "ca.pem") == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("expired", f"certificate .*expired.pem expired on .*{YESTERDAY}"),
        ("future", f"not valid before .*{TOMORROW}"),
    ],
)
def test_ones_own_certificate_is_looked_at_before_anybody_is_called(keys: Path, name: str, says: str) -> None:
    with pytest.raises(AgentError, match=says):
        AgentClient("127.0.0.1:1", pair(keys, name))
    with pytest.raises(TlsError, match=says):
        pair(keys, name).server_credentials()


def test_an_authority_that_has_expired_is_named(keys: Path) -> None:
    [found] = of_authorities(keys / "ca.pem")
    why = file_problem(None, None, keys / "ca.pem", now=found.ends + 1)
    assert why.startswith(f"the authority's certificate {keys / 'ca.pem'} expired on ")
    assert file_problem(None, None, keys / "ca.pem") == ""


def test_a_key_of_another_certificate_is_refused(keys: Path) -> None:
    with pytest.raises(
        TlsError, match=r"certificate .*good\.pem and the key .*expired\.key cannot be used: "
    ):
        TlsFiles(keys / "good.pem", keys / "expired.key").channel_credentials()


def test_a_certificate_is_read_as_it_is(keys: Path) -> None:
    found = of_pair(keys / "expired.pem", keys / "expired.key")
    assert found.names == ("localhost",)
    assert found.ends == int((NOW - DAY).timestamp())


def with_purpose(folder: Path, name: str, purpose: ExtendedKeyUsageOID, ends: datetime) -> TlsFiles:
    """Return a pair whose certificate is for one purpose only. trustme's are for servers and clients."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    made = (
        x509.CertificateBuilder(who, who, key.public_key(), 7, NOW - 30 * DAY, ends)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = (pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / f"{name}.pem").write_bytes(made.public_bytes(pem))
    (folder / f"{name}.key").write_bytes(key.private_bytes(*private))
    return TlsFiles(folder / f"{name}.pem", folder / f"{name}.key")


PURPOSES = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]


@pytest.mark.parametrize("purpose", [*PURPOSES, ExtendedKeyUsageOID.CODE_SIGNING])
def test_a_certificate_may_be_for_one_purpose_only(tmp_path: Path, purpose: ExtendedKeyUsageOID) -> None:
    """What is for neither servers nor clients is for the other side to refuse."""
    made = with_purpose(tmp_path, "one", purpose, NOW + DAY)
    made.channel_credentials()
    assert file_problem(made.cert, made.key, None) == ""


@pytest.mark.parametrize("purpose", PURPOSES)
def test_dates_are_read_whatever_a_certificate_is_for(tmp_path: Path, purpose: ExtendedKeyUsageOID) -> None:
    made = with_purpose(tmp_path, "old", purpose, NOW - DAY)
    with pytest.raises(TlsError, match=rf"certificate .*old\.pem expired on .*{YESTERDAY}"):
        made.channel_credentials()


@pytest.mark.parametrize("address", ["controller.example", "localhost:http", "localhost:99999", "", "[::1]"])
def test_of_an_address_without_a_port_nothing_is_said(keys: Path, address: str) -> None:
    assert pair(keys, "good").problem(address) == ""
