# SPDX-License-Identifier: Apache-2.0
"""Settings for switches without P4: each class has one queue, and Linux does as its script says."""

import contextlib
import shutil
import socket
import subprocess
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median

import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from typer.testing import CliRunner

from weir.cli import app
from weir.controller.commodity import bands, tc
from weir.controller.qos import DEFAULT_CLASSES, TRIM_AT, Qos
from weir.netns import Namespace
from weir.wire.definition import (
    BEST_EFFORT_DSCP,
    LAYER_CLASSES,
    MAGNITUDE_CLASSES,
    RELIABLE_DSCP,
    dscp,
)

EACH = 120  # frames of every class
SIZE = 1_000
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32  # of asm-generic/socket.h


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["controller", "qos", *map(str, arguments)])
    return done.exit_code, done.output


def test_each_class_has_one_queue_and_smaller_magnitudes_are_dropped_first() -> None:
    for most in (8, 16):
        found = bands(Qos(), most)
        assert len(found) <= most
        assert sorted(code for band in found for code in band.codes) == sorted(DEFAULT_CLASSES)
        place = {code: number for number, band in enumerate(found) for code in band.codes}
        assert place[RELIABLE_DSCP] == 0 and place[BEST_EFFORT_DSCP] == len(found) - 1
        for layer in range(LAYER_CLASSES):
            limits = [found[place[dscp(layer, m)]].limit for m in range(MAGNITUDE_CLASSES)]
            assert limits == list(TRIM_AT)
        fronts = [place[dscp(layer)] for layer in range(LAYER_CLASSES)]
        assert fronts == sorted(fronts)


def test_a_topology_files_thresholds_are_used(tmp_path: Path) -> None:
    from weir.controller.topology import leaf_spine

    made = leaf_spine(1, 1, 2, target="soft", qos=Qos(classes={"AF13": {"trim_at": 5}}))  # type: ignore[dict-item, arg-type]
    file = tmp_path / "topology.json"
    file.write_text(made.model_dump_json())
    status, output = run("--format", "tc", "--no-ecn", "--topology-file", file, "eth0")
    assert status == 0 and f"bfifo limit {5 * 1_102}\n" in output
    status, output = run("--format", "tc", "--topology-file", tmp_path / "none.yaml", "eth0")
    assert status == 2 and "none.yaml" in output


# -- a Linux box ----------------------------------------------------------------------------------------


def raw(interface: str) -> socket.socket:
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    made.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 26)
    made.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 1 << 26)
    made.bind((interface, 0x0003))
    return made


def burst(box: Namespace, there: Namespace) -> list[int]:
    """Send frames of all classes at once, in turn; return the DSCPs in the order in which they come."""
    codes = sorted(DEFAULT_CLASSES)
    frames = {
        code: bytes(
            Ether(src="02:00:00:00:00:01", dst="02:00:00:00:00:02")
            / IP(tos=code << 2)
            / UDP()
            / bytes(SIZE - 42)
        )
        for code in codes
    }
    came = []
    with box.call(partial(raw, "port")) as sender, there.call(partial(raw, "host")) as receiver:
        for _ in range(EACH):
            for code in codes:
                with contextlib.suppress(OSError):  # dropped by the queue
                    sender.send(frames[code])
        receiver.settimeout(2)
        with contextlib.suppress(TimeoutError):
            while True:
                frame = receiver.recv(2000)
                if len(frame) == SIZE:
                    came.append(frame[15] >> 2)
    return came


@pytest.mark.root
def test_a_linux_box_serves_front_layers_first_and_drops_small_magnitudes_first() -> None:
    if shutil.which("tc") is None:
        pytest.skip("needs tc on PATH (apt install iproute2)")
    with Namespace() as box, Namespace() as there:
        box.links.add_veth("port", "host", there=there.file)
        box.links.set("port", up=True)
        there.links.set("host", up=True)
        script = tc(Qos(), ["port"], "20mbit", ecn=False)
        done = subprocess.run(
            [*box.prefix, "sh", "-e"], input=script, text=True, capture_output=True, check=False
        )
        if "unknown" in done.stderr or "not found" in done.stderr:
            pytest.skip(f"needs a kernel with HTB, bfifo and u32: {done.stderr.splitlines()[0]}")
        assert done.returncode == 0, done.stderr
        came = burst(box, there)
    where: dict[int, list[int]] = defaultdict(list)
    for place, code in enumerate(came):
        where[code].append(place)
    assert len(where[RELIABLE_DSCP]) == len(where[BEST_EFFORT_DSCP]) == EACH  # nothing is dropped early
    for layer in range(LAYER_CLASSES):
        small, middle, large = (len(where[dscp(layer, magnitude)]) for magnitude in range(MAGNITUDE_CLASSES))
        assert large == EACH
        if layer:  # the front layer may hardly have had to wait
            assert TRIM_AT[0] <= small < middle < large, (layer, small, middle, large)
    order = [RELIABLE_DSCP, *(dscp(layer) for layer in range(LAYER_CLASSES)), BEST_EFFORT_DSCP]
    middles = [median(where[code]) for code in order]
    assert middles == sorted(middles), middles
