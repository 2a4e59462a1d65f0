# SPDX-License-Identifier: Apache-2.0
"""Sets router.p4 on a P4Runtime switch and fills its table from entries.json.

    weir switch --grpc 127.0.0.1:9559 --port 1=veth1 --port 2=veth2     # or any other v1model switch
    python examples/router/controller.py

The switch's address and id are those of P4RUNTIME and DEVICE_ID, as mininet/any_program.py sets them.
"""

import ipaddress
import json
import os
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from softp4.p4runtime.names import Names
from softp4.p4runtime.schema import p4info_pb2, p4runtime_pb2
from softp4.p4runtime.session import Session

FOLDER = Path(__file__).resolve().parent


def route(names: Names, entry: dict[str, Any]) -> Any:
    """Return an update that inserts one entry of entries.json into the table `routes`."""
    update = p4runtime_pb2.Update(type=p4runtime_pb2.Update.INSERT)
    table = update.entity.table_entry
    table.table_id = names.id("tables", "routes")
    network = ipaddress.ip_network(entry["prefix"])
    match = table.match.add(field_id=names.field("routes", "hdr.ipv4.dst").id)
    match.lpm.value, match.lpm.prefix_len = network.network_address.packed, network.prefixlen
    table.action.action.action_id = names.id("actions", "send")
    arguments = {
        "port": entry["port"].to_bytes(2, "big"),
        "next_hop": bytes.fromhex(entry["next_hop"].replace(":", "")),
    }
    for name, value in arguments.items():
        table.action.action.params.add(param_id=names.param("send", name).id, value=value)
    return update


def main() -> None:
    address = os.environ.get("P4RUNTIME", "127.0.0.1:9559")
    p4info = text_format.Parse((FOLDER / "router.p4info.txtpb").read_text(), p4info_pb2.P4Info())
    entries = json.loads((FOLDER / "entries.json").read_text())
    with Session(address, device_id=int(os.environ.get("DEVICE_ID", "1"))) as session:
        session.push(p4info, (FOLDER / "router.json").read_bytes())
        session.write([route(Names(p4info), entry) for entry in entries])
    print(f"{len(entries)} routes at {address}")


if __name__ == "__main__":
    main()
