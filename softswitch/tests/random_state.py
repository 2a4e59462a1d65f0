# SPDX-License-Identifier: Apache-2.0
"""P4 programs made at random that keep state: registers, meters and counters by many kinds of index."""

import random
from typing import Final

_PROGRAM: Final = """#include <core.p4>
#include <v1model.p4>
header request_t {{ bit<8> what; bit<8> flow; bit<16> slot; bit<32> value; bit<32> found; }}
struct headers_t {{ request_t h; }}
struct meta_t {{ bit<32> m0; bit<32> m1; bit<32> m2; bit<16> n; bit<1> f0; bit<1> f1; }}
parser Parse(packet_in packet, out headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{
    state start {{ packet.extract(hdr.h); transition accept; }}
}}
control Verify(inout headers_t hdr, inout meta_t meta) {{ apply {{}} }}
control Compute(inout headers_t hdr, inout meta_t meta) {{ apply {{}} }}
control Deparse(packet_out packet, in headers_t hdr) {{ apply {{ packet.emit(hdr.h); }} }}
control In(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{
{objects}
{actions}
    table choose {{
        key = {{ hdr.h.what: exact; }}
        actions = {{ {names} }}
        default_action = act0(0);
    }}
    apply {{
        sm.egress_spec = (bit<9>)hdr.h.flow[1:0];
        choose.apply();
{body}
        if (hdr.h.flow == 255) {{ sm.mcast_grp = 1; }}
    }}
}}
control Out(inout headers_t hdr, inout meta_t meta, inout standard_metadata_t sm) {{
    apply {{ {egress} }}
}}
V1Switch(Parse(), Verify(), In(), Out(), Compute(), Deparse()) main;
"""
ACTIONS: Final = 4
_META: Final = ("meta.m0", "meta.m1", "meta.m2")


def program(seed: int) -> str:
    """Return P4 text; the same seed makes the same."""
    return _Author(random.Random(seed)).text()


class _Author:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._usual = rng.choice(("(bit<32>)hdr.h.slot", "(bit<32>)hdr.h.flow"))
        self._registers = [f"r{number}" for number in range(rng.randint(1, 3))]

    def text(self) -> str:
        rng = self._rng
        objects = [
            f"    register<bit<32>>({rng.choice((16, 256, 4096))}) {name};" for name in self._registers
        ]
        objects += [
            "    meter(256, MeterType.packets) pace;",
            "    counter(64, CounterType.packets_and_bytes) c;",
        ]
        actions = []
        for number in range(ACTIONS):
            body = " ".join(self._statement("base") for _ in range(rng.randint(1, 4)))
            actions.append(f"    action act{number}(bit<32> base) {{ {body} }}")
        egress = "meta.n = meta.n + 1; hdr.h.value = (bit<32>)meta.n;"
        if rng.random() < 0.3:
            egress = "hdr.h.value = meta.m0;"
        return _PROGRAM.format(
            objects="\n".join(objects),
            actions="\n".join(actions),
            names=" ".join(f"act{number};" for number in range(ACTIONS)),
            body="\n".join(self._conditional() for _ in range(rng.randint(0, 3))),
            egress=egress,
        )

    def _index(self, base: str) -> str:
        rng = self._rng
        part = self._usual
        if rng.random() < 0.1:
            part = rng.choice(("(bit<32>)hdr.h.slot", "(bit<32>)hdr.h.flow", *_META))
        if rng.random() < 0.4:
            return part
        return rng.choice(
            (
                part,
                f"{base} + {part}",
                f"({part} << 1) | {rng.randrange(2)}",
                f"(({base} + {part}) << 2) | (bit<32>)hdr.h.flow[1:0]",
                f"{part} & 0x{rng.choice((7, 15, 63, 0xFFFF)):x}",
                f"{part} + {rng.choice((4, 16, 64))}",
                f"({part} >> {rng.randrange(3)}) & 255",
                f"(meta.f0 == 1 ? {part} : {part} & 15)",
            )
        )

    def _statement(self, base: str) -> str:
        rng = self._rng
        register, field = rng.choice(self._registers), rng.choice(_META)
        chance = rng.random()
        index = self._index(base)
        if chance < 0.3:
            return f"{field} = {index};"
        if chance < 0.4:
            return f"meta.{rng.choice(('f0', 'f1'))} = {rng.randrange(2)};"
        if chance < 0.55:
            return f"{register}.read(hdr.h.found, {index});"
        if chance < 0.8:
            return (
                f"{register}.read(hdr.h.found, {index}); "
                f"{register}.write({index}, hdr.h.found + hdr.h.value);"
            )
        if chance < 0.9:
            return f"pace.execute_meter({index}, {field});"
        return "c.count((bit<32>)hdr.h.flow & 63);"

    def _conditional(self) -> str:
        rng = self._rng
        condition = rng.choice(
            ("meta.f0 == 1", "meta.f1 == 1", "hdr.h.what > 3", "meta.m0 == 0", "hdr.h.found > hdr.h.value")
        )
        return f"        if ({condition}) {{ {self._statement('meta.m1')} }}"
