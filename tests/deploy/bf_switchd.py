# SPDX-License-Identifier: Apache-2.0
"""A stand-in for bf_switchd where no Tofino is: BfRuntime at its port, frames through the compiled program.

Device ports are interfaces: /run/ports has lines such as ``132=eth1``. The arguments are bf_switchd's own.
"""

import argparse
import json
import select
import socket
import threading
from pathlib import Path
from typing import Any

from tests.harness.bfrt import FakeTofino
from tests.harness.tofino import BfaTarget
from weir.controller.bfrt import groups
from weir.controller.bfrt.codec import decode
from weir.controller.bfrt.schema import Schema, Table

ADDRESS = "127.0.0.1:50052"
_ETH_P_ALL = 3
_FRAME = 2048


class ExecutedTofino(FakeTofino):
    """BfRuntime whose tables are those of the compiled program, which is executed."""

    def __init__(self, programs: dict[str, bytes]) -> None:
        super().__init__(programs)
        self.target = BfaTarget()
        self.address = ADDRESS
        self.busy = threading.Lock()

    def _write(self, schema: Schema, verb: str, entry: Any) -> None:
        with self.busy:
            super()._write(schema, verb, entry)
            table = schema.with_id(entry.table_id)
            if table.kind == "MatchAction_Direct":
                self.target.change(verb, decode(schema, entry))
            elif table.kind == "Register":
                self.target.zero(table.name, int.from_bytes(entry.key.fields[0].exact.value, "big"))
            elif table.name.startswith("$pre."):
                self._replicate(schema)

    def _replicate(self, schema: Schema) -> None:
        found = groups.read(schema, [*self.entries("$pre.mgid"), *self.entries("$pre.node")])
        for group, replicas in found.replicas().items():
            self.target.set_group(group, [(replica.port, replica.rid) for replica in sorted(replicas)])

    def _cell(self, table: Table, index: int) -> Any:
        entry = super()._cell(table, index)
        if table.kind == "Counter":
            count = self.target.counter(table.name, index)
            said = {"$COUNTER_SPEC_PKTS": count.packets, "$COUNTER_SPEC_BYTES": count.bytes}
            for field, datum in zip(table.data, entry.data.fields, strict=True):
                datum.stream = said[field.name].to_bytes(field.bytes, "big")
        return entry


def forward(switch: ExecutedTofino, ports: dict[int, socket.socket]) -> None:
    """Move frames between interfaces, for ever."""
    numbers = {sock: port for port, sock in ports.items()}
    while True:
        for sock in select.select(list(numbers), [], [])[0]:
            frame, address = sock.recvfrom(_FRAME)
            if address[2] == socket.PACKET_OUTGOING:
                continue
            with switch.busy:
                sent = switch.target.send(numbers[sock], frame)
            for out in sent:
                if out.port in ports:
                    ports[out.port].send(out.frame)


def main() -> None:
    """Do what bf_switchd is told by the unit."""
    parser = argparse.ArgumentParser()
    for option in ("--install-dir", "--conf-file"):
        parser.add_argument(option, required=True)
    for option in ("--background", "--server-listen-local-only"):
        parser.add_argument(option, action="store_true", required=True)
    said = parser.parse_args()
    conf = json.loads(Path(said.conf_file).read_text())
    (device,) = conf["p4_devices"]
    programs = {}
    for program in device["p4_programs"]:
        programs[program["program-name"]] = Path(program["bfrt-config"]).read_bytes()
        (pipeline,) = program["p4_pipelines"]
        assert all(Path(pipeline[name]).is_file() for name in ("context", "config"))
    switch = ExecutedTofino(programs)
    ports = {}
    for line in Path("/run/ports").read_text().split():
        number, interface = line.split("=")
        ports[int(number)] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL))
        ports[int(number)].bind((interface, 0))
    switch.start()
    forward(switch, ports)


if __name__ == "__main__":
    main()
