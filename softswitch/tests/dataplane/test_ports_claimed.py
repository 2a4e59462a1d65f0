# SPDX-License-Identifier: Apache-2.0
"""Ports that hosts claim over IP: who has the key has the port, and nobody else says or hears anything."""

import contextlib
import random
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from softp4.dataplane.ports import PortError, PortLoop
from softp4.native.claims import KEY_BYTES, port_key, read_secret, write_secret
from tests.dataplane.test_ports import frame, loop, program
from tests.dataplane.test_ports_udp import LOCAL, free_address
from tests.harness.claimant import CHALLENGE, PROOF, TAKEN, ask, claim, message, siphash
from tests.p4rt.p4rt_client import TIMEOUT

__all__ = ["loop", "program"]

IN, OUT, CLAIMED = 1, 2, 3
SECRET = bytes(range(32))
KEY = port_key(SECRET, CLAIMED)
SHORT = 0.1
GROUP = 0xEF770010  # 239.119.0.16
Host = Callable[[], socket.socket]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.write_text(SECRET.hex())
    return path


@pytest.fixture
def hub(loop: PortLoop, secret: Path) -> tuple[str, int]:
    """Return the address of port CLAIMED, which waits to be claimed."""
    for number in (IN, OUT):
        loop.add_queue(number, "queue")
    local = free_address()
    loop.add_claimed(CLAIMED, local, secret)
    return local


@pytest.fixture
def host(hub: tuple[str, int]) -> Iterator[Host]:
    """Yield a maker of hosts' sockets, connected to the port."""
    with contextlib.ExitStack() as ends:

        def make() -> socket.socket:
            end = ends.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            end.settimeout(TIMEOUT)
            end.connect(hub)
            return end

        yield make


def heard(loop: PortLoop, end: socket.socket) -> bool:
    """Return whether what a socket sends passes the switch."""
    end.send(frame(OUT))
    return loop.receive(OUT, SHORT) is not None


def to_udp(port: int, payload: bytes = b"") -> bytes:
    """Return a frame to port CLAIMED that is a datagram to a UDP port, over IPv4."""
    made = bytearray(frame(CLAIMED, payload=bytes(28) + payload))
    made[12:14], made[14], made[23], made[36:38] = b"\x08\0", 0x45, 17, port.to_bytes(2, "big")
    return bytes(made)


def test_siphash_of_the_paper() -> None:
    assert siphash(bytes(range(16)), int.from_bytes(bytes(range(8)), "little")) == 0x93F5F5799A932462


def test_a_frame_passes_once_the_port_is_claimed(loop: PortLoop, host: Host) -> None:
    end = host()
    assert not heard(loop, end)
    assert loop.statistics(CLAIMED).rx_drops == 1
    loop.inject(IN, frame(CLAIMED))
    loop.drain(IN, TIMEOUT)
    assert loop.statistics(CLAIMED).tx_drops == 1
    claim(end, KEY)
    assert heard(loop, end)
    loop.inject(IN, frame(CLAIMED))
    assert end.recv(4096) == frame(CLAIMED)
    stats = loop.statistics(CLAIMED)
    assert (stats.rx_packets, stats.tx_packets) == (1, 1)


def test_a_proof_serves_once_and_for_who_gave_it(loop: PortLoop, host: Host) -> None:
    owner, thief = host(), host()
    proof = claim(owner, KEY)
    thief.send(proof)
    assert not heard(loop, thief)
    assert heard(loop, owner)
    assert loop.statistics(CLAIMED).rx_drops == 2


def test_what_does_not_prove_the_key_changes_nothing(loop: PortLoop, host: Host) -> None:
    owner, thief = host(), host()
    claim(owner, KEY)
    number = ask(thief)
    other = bytes(KEY_BYTES)
    wrong = [
        message(PROOF, number, key=other),
        message(PROOF, number + 1, key=KEY),
        message(TAKEN, number, key=KEY),
        message(CHALLENGE, number),
        message(0, number, key=KEY),
        message(PROOF, number, key=KEY)[:-1],
        message(PROOF, number, key=KEY) + b"\0",
    ]
    for each in wrong:
        thief.send(each)
        assert not heard(loop, thief)
    assert loop.statistics(CLAIMED).rx_drops == 2 * len(wrong)
    assert heard(loop, owner)
    thief.settimeout(SHORT)
    with pytest.raises(TimeoutError):
        thief.recv(64)


def test_a_host_that_moved_claims_again(loop: PortLoop, host: Host) -> None:
    before, after = host(), host()
    claim(before, KEY, label=7)
    claim(after, KEY, label=7)
    assert heard(loop, after)
    assert not heard(loop, before)
    loop.inject(IN, to_udp(7))
    assert after.recv(4096) == to_udp(7)


def test_each_label_has_an_address_and_the_newest_has_the_rest(loop: PortLoop, host: Host) -> None:
    ends = {label: host() for label in (5, 6, 7)}
    for label, end in ends.items():
        claim(end, KEY, label)
    for label, end in ends.items():
        assert heard(loop, end)
        loop.inject(IN, to_udp(label))
        assert end.recv(4096) == to_udp(label)
    for other in (frame(CLAIMED), to_udp(8)):
        loop.inject(IN, other)
        assert ends[7].recv(4096) == other


def test_frames_to_a_group_go_to_all_its_members(loop: PortLoop, host: Host) -> None:
    members, other, own = [host() for _ in range(2)], host(), host()
    for end in members:
        claim(end, KEY, GROUP)
    claim(other, KEY, GROUP + 1)
    claim(own, KEY, 7)
    sent = bytearray(to_udp(7))
    sent[30:34] = GROUP.to_bytes(4, "big")
    loop.inject(IN, bytes(sent))
    assert [end.recv(4096) for end in members] == [bytes(sent)] * 2
    loop.inject(IN, to_udp(7))
    assert own.recv(4096) == to_udp(7)
    for end in (other, *members):
        end.settimeout(SHORT)
        with pytest.raises(TimeoutError):
            end.recv(4096)


def test_frames_in_turn_for_two_addresses_arrive_whole(loop: PortLoop, host: Host) -> None:
    ends = {label: host() for label in (5, 6)}
    for label, end in ends.items():
        claim(end, KEY, label)
    drawn = random.Random(1)
    sent = [
        (label, to_udp(label, bytes(n % 3) + bytes([n])))
        for n in range(60)
        for label in [drawn.choice((5, 6))]
    ]
    for _, each in sent:
        loop.inject(IN, each)
    for label, end in ends.items():
        wanted = [each for to, each in sent if to == label]
        assert [end.recv(4096) for _ in wanted] == wanted


def test_more_hosts_than_places_keep_the_newest(loop: PortLoop, host: Host) -> None:
    ends = [host() for _ in range(66)]
    for label, end in enumerate(ends, 1):
        claim(end, KEY, label)
    assert [heard(loop, end) for end in ends[:3]] == [False, False, True]
    assert heard(loop, ends[-1])


@pytest.mark.parametrize("there", ["127.0.0.1", "::1"])
def test_no_address_is_every_address(loop: PortLoop, secret: Path, there: str) -> None:
    family = socket.AF_INET6 if ":" in there else socket.AF_INET
    if family is socket.AF_INET6 and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    _, port = free_address(there)
    loop.add_queue(OUT, "queue")
    loop.add_claimed(CLAIMED, ("", port), secret)
    with socket.socket(family, socket.SOCK_DGRAM) as end:
        end.settimeout(TIMEOUT)
        end.connect((there, port))
        claim(end, KEY)
        assert heard(loop, end)


def test_claims_between_the_frames_of_a_batch(loop: PortLoop, host: Host) -> None:
    end = host()
    claim(end, KEY)
    for _ in range(40):
        end.send(frame(OUT))
        end.send(message(1))
    assert all(loop.receive(OUT, TIMEOUT) == frame(OUT) for _ in range(40))
    assert loop.receive(OUT, SHORT) is None


def test_an_address_in_use_is_refused(loop: PortLoop, hub: tuple[str, int], secret: Path) -> None:
    with pytest.raises(PortError, match=f"port 5, claimed by key at udp {LOCAL}:{hub[1]}"):
        loop.add_claimed(5, hub, secret)


def test_a_secret_that_is_missing_is_said(loop: PortLoop, tmp_path: Path) -> None:
    with pytest.raises(PortError, match=r"port 5, claimed by key at .*No such file or directory.*nothing"):
        loop.add_claimed(5, free_address(), tmp_path / "nothing")


def test_keys_of_ports_differ_and_the_secret_is_the_users_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    secret = read_secret(path)
    keys = {port_key(secret, port) for port in range(1, 9)}
    assert len(keys) == 8
    assert {len(key) for key in keys} == {KEY_BYTES}
    with pytest.raises(FileExistsError):
        write_secret(path)
    path.write_text("00ff")
    with pytest.raises(ValueError, match="write 64 hexadecimal digits"):
        read_secret(path)
