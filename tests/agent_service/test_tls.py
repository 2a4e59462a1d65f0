# SPDX-License-Identifier: Apache-2.0
"""Mutual TLS between agents and the controller: who shows no good certificate is not heard."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.harness import certificates
from tests.harness.switch_process import SwitchProcess
from weir.agent_service.client import AgentClient, AgentError, ControllerUnreachable
from weir.agent_service.tls import TlsError, TlsFiles
from weir.controller.program import load_program
from weir.controller.server import Settings, running
from weir.controller.switch_client import SwitchClient, SwitchError
from weir.controller.topology import single_switch
from weir.controller.wiring import Switch, SwitchTls

TOPOLOGY = single_switch(1, "127.0.0.1:1")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an authority with a server's and a client's certificate, and a stranger with one of its own."""
    folder = tmp_path_factory.mktemp("keys")
    certificates.make(folder)
    return folder


def files(keys: Path, name: str, authority: str = "ca") -> TlsFiles:
    return TlsFiles(keys / f"{name}.pem", keys / f"{name}.key", keys / f"{authority}.pem")


def settings(keys: Path) -> Settings:
    return Settings(tls=files(keys, "server"))


def test_who_has_a_certificate_is_heard(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(TOPOLOGY, settings(keys)) as controller:
        with AgentClient(controller.address, files(keys, "client")) as agent:
            assert agent.status().switches[0].name == "s1"
        monkeypatch.setenv("WEIR_TLS_CERT", str(keys / "client.pem"))
        monkeypatch.setenv("WEIR_TLS_KEY", str(keys / "client.key"))
        monkeypatch.setenv("WEIR_TLS_CA", str(keys / "ca.pem"))
        with AgentClient(controller.address) as agent:
            assert agent.status().switches[0].name == "s1"


@pytest.mark.parametrize(
    ("who", "says"),
    [
        ("nobody", "do both sides use TLS or neither"),
        ("no certificate", "no TLS with the controller at .* refuses clients without one"),
        ("stranger", r"no TLS with the controller at .* signed by .*, which is none of .*stranger-ca\.pem"),
        ("unknown", r"no TLS with the controller at .* refuses the certificate .*stranger\.pem"),
    ],
)
def test_who_has_none_is_not_heard(keys: Path, who: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weir.agent_service.client.CONNECT_TIMEOUT_S", 0.2)
    tls = {
        "nobody": None,
        "no certificate": TlsFiles(ca=keys / "ca.pem"),
        "stranger": files(keys, "stranger", "stranger-ca"),
        "unknown": files(keys, "stranger"),
    }[who]
    with (
        running(TOPOLOGY, settings(keys)) as controller,
        AgentClient(controller.address, tls) as agent,
        pytest.raises(ControllerUnreachable, match=says),
    ):
        agent.status()


def test_half_a_pair_is_refused(keys: Path) -> None:
    with pytest.raises(TlsError, match="belong together"):
        TlsFiles(cert=keys / "server.pem")


def test_a_server_needs_a_certificate(keys: Path) -> None:
    with (
        pytest.raises(TlsError, match="needs a certificate and its key"),
        running(TOPOLOGY, replace(settings(keys), tls=TlsFiles(ca=keys / "ca.pem"))),
    ):
        pass


def test_a_file_that_is_not_there(keys: Path) -> None:
    with pytest.raises(AgentError, match=r"cannot read .*nowhere.pem: No such file"):
        AgentClient("127.0.0.1:1", TlsFiles(ca=keys / "nowhere.pem"))


def test_a_file_that_is_no_certificate(keys: Path, tmp_path: Path) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")
    with (
        pytest.raises(TlsError, match=r"certificate .*junk\.pem and the key .*server\.key cannot be used: "),
        running(TOPOLOGY, replace(settings(keys), tls=TlsFiles(junk, keys / "server.key"))),
    ):
        pass


def test_a_switch_behind_mutual_tls_is_programmed(keys: Path, tmp_path: Path) -> None:
    pem = [f"--tls-{what}={keys / name}" for what, name in (("cert", "server.pem"), ("key", "server.key"))]
    switch = SwitchProcess("soft", tmp_path, options=[*pem, f"--tls-ca={keys / 'ca.pem'}"])
    switch.start()
    try:
        ours = SwitchTls(ca=keys / "ca.pem", cert=keys / "client.pem", key=keys / "client.key")
        theirs = ours.model_copy(update={"cert": keys / "stranger.pem", "key": keys / "stranger.key"})
        client = SwitchClient(Switch(name="s1", grpc=switch.address, tls=ours), 2)
        assert client.ensure_program(load_program("weir_v1model"))
        client.close()
        for tls in (None, theirs):
            with pytest.raises(SwitchError, match="cannot be reached"):
                SwitchClient(Switch(name="s1", grpc=switch.address, tls=tls), 3)
    finally:
        switch.stop()
