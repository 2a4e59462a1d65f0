# SPDX-License-Identifier: Apache-2.0
"""The program for Tofino as a test target: translated to v1model, on two soft switches.

It takes the entries that tests make for ``weir_v1model.p4`` and makes of them those that say the same here.
"""

import ipaddress
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.harness.soft import entry_key
from tests.harness.target import EVENTS, Count, Key, Sent, Target, Ternary
from tests.harness.tna_translation import MIRRORED, translate
from weir import p4src
from weir.softswitch.program.loader import load_program
from weir.softswitch.state.entry import Entry
from weir.softswitch.switch import Switch
from weir.wire.addresses import mac_number
from weir.wire.definition import AUDIENCE_EXCEPT, WHOLE_PATH, PacketType, path

SOURCE: Final = p4src.BUILD.parent / "weir_tna.p4"
_TM: Final = 7  # bytes of what ingress tells the traffic manager
VERSION: Final = 1 << 13  # what the other version of a slot is away
_CUT: Final = 4  # ROLE_CUT
_WITHOUT_LANES: Final = 14 + 64  # bytes of a frame, where mirrors of ports end
_BRIDGE: Final = 8  # bytes of what ingress tells egress
_TO_WORKER, _TO_OTHERS, _TO_RACK, _TO_POD = 2, 3, 4, 5  # LANES_TO_WORKER, ...


class TnaTarget(Target):
    """Ingress on one switch, egress on another; multicast groups are this class's."""

    name = "tna"
    shortest_frame = 0
    headroom = 0xFFFF
    lane_groups = 1
    forwards_what_it_cannot_parse = False

    def __init__(self) -> None:
        self._ingress, self._egress = (_compiled(text) for text in translate(SOURCE))
        self._groups: dict[int, list[tuple[int, int]]] = {}
        self._jobs: set[int] = set()  # whose audiences are installed

    def send(self, port: int, frame: bytes) -> list[Sent]:
        sent: list[Sent] = []
        for _, told in self._ingress.process(port, frame, now=0):
            out, group = int.from_bytes(told[:2], "big"), int.from_bytes(told[2:4], "big")
            copies = self._groups.get(group, []) if group else [(out, 0)]
            queue = told[5].to_bytes(1, "big")
            for to, replica in copies:
                front = to.to_bytes(2, "big") + replica.to_bytes(2, "big") + queue + bytes(4)
                for where, out_frame in self._egress.process(0, front + told[_TM:], now=0):
                    sent += (
                        self._mirrored(front, out_frame) if where == MIRRORED else [Sent(where, out_frame)]
                    )
        return sorted(sent)

    def _mirrored(self, front: bytes, frame: bytes) -> list[Sent]:
        """Cut what was mirrored, and let it pass egress once more, to the same port."""
        role = _CUT.to_bytes(1, "big") + bytes(_BRIDGE - 1)
        again = self._egress.process(0, front + role + frame[:_WITHOUT_LANES], now=0)
        return [Sent(*out) for out in again]

    def packet_out(self, port: int, frame: bytes) -> list[Sent]:
        raise NotImplementedError("the program for Tofino has no packet-out")

    def insert(
        self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = (), priority: int = 0
    ) -> None:
        match table.removeprefix("WeirIngress."), list(args):
            case "aggregator.addresses", _:
                self._put("aggregator.addresses", key, "aggregate")
            case "admission.workers", [base, count, bit, everyone, group, _, rack]:
                others = everyone & ~bit
                self._put("admission.workers", key, "admit", (bit, others, int(not others), group, rack))
                self._range(key[1], base, count)
            case "admission.parents", [base, count, own, _, group, _]:
                for kind in (PacketType.RESULT, PacketType.REPEAT):
                    self._put("admission.parents", (*key, kind), "accept", (own, group))
                self._range(key[1], base, count)
            case "tree.uplinks", [port, number, _, *addresses]:
                self._put("tree.uplinks", key, "climb", (port, number))
                self._put("results.uplink_addresses", key, "address", addresses, egress=True)
            case "WeirEgress.results.receivers", [*addresses, mask, path]:
                self._put("results.receivers", key, "deliver", addresses, egress=True)
                self._audience(key[0], mask, path)
            case "forwarding.l2", _:
                self._put("forwarding.l2", key, action.rpartition(".")[2], args)
            case _:
                raise NotImplementedError(f"{table} is not in the program for Tofino")

    def _put(
        self,
        table: str,
        key: Sequence[Key],
        action: str,
        args: Sequence[int] = (),
        *,
        egress: bool = False,
        priority: int = 0,
    ) -> None:
        control = table.rpartition(".")[0]
        switch = self._egress if egress else self._ingress
        entry = Entry(entry_key(key), f"Whole.weir.{control}.{action}", tuple(args), priority)
        switch.table(f"Whole.weir.{table}").insert(entry)

    def _range(self, job: Key, base: int, count: int) -> None:
        """Say where a job's slots are: their number is a power of two that divides the first."""
        assert isinstance(job, int) and count & (count - 1) == 0 and base % count == 0
        where = (Ternary(job, 0xFFFFFFFF), Ternary(0, 0xFFFF & ~(count - 1)))
        table = self._ingress.table("Whole.weir.admission.ranges")
        entry = Entry(entry_key(where), "Whole.weir.admission.place", (base,), 1)
        if entry not in table.entries():
            table.insert(entry)
            self._clear(base, count)

    def _clear(self, base: int, count: int) -> None:
        """Zero the cells of a new job's slots, as the controller does."""
        for name in self._ingress.program.registers:
            for version in (0, VERSION):
                for slot in range(base, base + count):
                    self._ingress.register(name).write(version + slot, 0)

    def _audience(self, job: Key, mask: int, number: int) -> None:
        """Say who gets lanes, from the path of one of the children; all but its last number are alike."""
        assert isinstance(job, int)
        if job in self._jobs:
            return
        self._jobs.add(job)
        tier = (mask & -mask).bit_length() // 5  # 0: workers
        above = WHOLE_PATH & ~path(*[31] * (tier + 1))
        whole, everyone = (0xFFFFFFFF, 0xFFFF)
        rows = [
            (Ternary(everyone, everyone), "everybody", ()),
            (
                Ternary(number & above, above | AUDIENCE_EXCEPT),
                "child",
                ((_TO_WORKER, _TO_RACK, _TO_POD)[tier],),
            ),
            (Ternary(0, AUDIENCE_EXCEPT), "nobody", ()),
        ]
        if tier == 0:
            except_here = Ternary(AUDIENCE_EXCEPT | number & above, above | AUDIENCE_EXCEPT)
            rows.insert(1, (except_here, "child", (_TO_OTHERS,)))
        for rank, (audience, action, args) in enumerate(rows):
            key = (Ternary(job, whole), audience)
            self._put("audience.audiences", key, action, args, priority=10 - rank)

    def modify(self, table: str, key: Sequence[Key], action: str, args: Sequence[int] = ()) -> None:
        raise NotImplementedError(f"{table}: entries of the program for Tofino are not changed by tests")

    def set_default(self, table: str, action: str, args: Sequence[int] = ()) -> None:
        raise NotImplementedError(f"{table}: defaults of the program for Tofino are not changed by tests")

    def answer_arp(self, ip: str, mac: str) -> None:
        """Let the switch answer for an address of its own."""
        address = int(ipaddress.IPv4Address(ip))
        self._put("arp.addresses", (address,), "answer", (mac_number(mac),))

    def set_group(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        self._groups[group] = list(replicas)

    def counter(self, name: str, index: int) -> Count:
        if name != EVENTS:
            return Count(0, 0)
        count = self._ingress.counter("Whole.weir.events").read(index)
        return Count(count.packets, count.bytes)

    def entry_counter(self, table: str, key: Sequence[Key]) -> Count:
        raise NotImplementedError("counters of entries are left out of the translation")

    def reset(self) -> None:
        self._groups.clear()
        self._jobs.clear()
        for switch in (self._ingress, self._egress):
            for name, table in switch.program.tables.items():
                if not table.immutable:
                    for entry in switch.table(name).entries():
                        switch.table(name).delete(entry.key, entry.priority)

    def close(self) -> None:
        self._ingress.close()
        self._egress.close()


def _compiled(text: str) -> Switch:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program.p4"
        program.write_text(text)
        done = subprocess.run(
            ["p4c-bm2-ss", "-o", f"{folder}/program.json", str(program)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Switch(load_program(Path(folder) / "program.json"))
