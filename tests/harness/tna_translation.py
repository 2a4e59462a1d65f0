# SPDX-License-Identifier: Apache-2.0
"""``weir_tna.p4`` as two v1model programs, so that what it decides can be run where there is no Tofino.

Of Weir's own text only the externs of the architecture are rewritten: registers with their actions become
reads, the action's body and writes; hashes become XORs. Ingress becomes one program, which writes in front of
the packet what it told the traffic manager; egress another, which finds the traffic manager's word there.
Stages, containers and the limits of a stateful ALU are not modelled: the compiler for Tofino judges them.
"""

import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

MIRRORED: Final = 509  # the port by which egress says that a packet is for the mirror of its own port

_ARCHITECTURE: Final = """
#include <core.p4>
#define V1MODEL_VERSION 20200408
#include <v1model.p4>
struct ingress_intrinsic_metadata_t { bit<9> ingress_port; }
struct ingress_intrinsic_metadata_from_parser_t { bit<16> parser_err; }
struct ingress_intrinsic_metadata_for_deparser_t { bit<3> drop_ctl; }
struct ingress_intrinsic_metadata_for_tm_t {
    bit<9> ucast_egress_port; bit<16> mcast_grp_a; bit<3> ingress_cos; bit<5> qid; bit<2> packet_color;
}
header tm_t { bit<16> port; bit<16> group; bit<8> cos; bit<8> queue; bit<8> colour; }
header egress_intrinsic_metadata_t {
    bit<7> pad0; bit<9> egress_port; bit<16> egress_rid; bit<3> pad1; bit<5> egress_qid; bit<13> pad2;
    bit<19> deq_qdepth;
}
struct egress_intrinsic_metadata_from_parser_t { bit<16> parser_err; }
typedef bit<3> MirrorType_t;
struct egress_intrinsic_metadata_for_deparser_t { bit<3> drop_ctl; bit<3> mirror_type; }
struct egress_intrinsic_metadata_for_output_port_t { bit<16> pad; }
"""

_INGRESS: Final = """
control Verify(inout headers_t hdr, inout metadata_t meta) {
    apply {
        verify_checksum(hdr.ipv4.isValid() && hdr.ipv4.ihl == 5, { CHECKED }, hdr.ipv4.checksum,
                        HashAlgorithm.csum16);
    }
}
control Compute(inout headers_t hdr, inout metadata_t meta) { apply {} }
control Whole(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    WeirIngress() weir;
    ingress_intrinsic_metadata_t port;
    ingress_intrinsic_metadata_from_parser_t prsr;
    ingress_intrinsic_metadata_for_deparser_t dprsr;
    ingress_intrinsic_metadata_for_tm_t tm;
    apply {
        port = { standard.ingress_port };
        prsr = { 0 };
        dprsr = { 0 };
        tm = { 511, 0, 0, 0, 0 };
        meta.bad_checksum = (bit<1>)standard.checksum_error;
        if (standard.parser_error != error.NoError) { // the hardware's parser drops it
            mark_to_drop(standard);
        } else {
            weir.apply(hdr, meta, port, prsr, dprsr, tm);
            if (dprsr.drop_ctl != 0 || (tm.mcast_grp_a == 0 && tm.ucast_egress_port == 511)) {
                mark_to_drop(standard);
            } else {
                standard.egress_spec = 0;
                hdr.tm = { (bit<16>)tm.ucast_egress_port, tm.mcast_grp_a, (bit<8>)tm.ingress_cos,
                           (bit<8>)tm.qid, (bit<8>)tm.packet_color };
            }
        }
    }
}
control Nothing(inout headers_t hdr, inout metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Front(packet_out packet, in headers_t hdr) {
    apply { packet.emit(hdr.tm); EMITS }
}
V1Switch(WeirIngressParser(), Verify(), Whole(), Nothing(), Compute(), Front()) main;
"""

_EGRESS: Final = """
control Verify(inout headers_t hdr, inout egress_metadata_t meta) { apply {} }
control Compute(inout headers_t hdr, inout egress_metadata_t meta) {
    apply { update_checksum(meta.checksum == 1, { CHECKED }, hdr.ipv4.checksum, HashAlgorithm.csum16); }
}
control Whole(inout headers_t hdr, inout egress_metadata_t meta, inout standard_metadata_t standard) {
    WeirEgress() weir;
    egress_intrinsic_metadata_from_parser_t prsr;
    egress_intrinsic_metadata_for_deparser_t dprsr;
    egress_intrinsic_metadata_for_output_port_t oport;
    apply {
        prsr = { 0 };
        dprsr = { 0, 0 };
        oport = { 0 };
        weir.apply(hdr, meta, hdr.eg_intr_md, prsr, dprsr, oport);
        standard.egress_spec = hdr.eg_intr_md.egress_port;
        if (dprsr.mirror_type != 0) { // what is mirrored is what would have been sent
            standard.egress_spec = MIRRORED;
        } else if (dprsr.drop_ctl != 0 || standard.parser_error != error.NoError) {
            mark_to_drop(standard);
        }
    }
}
control Nothing(inout headers_t hdr, inout egress_metadata_t meta, inout standard_metadata_t standard) {
    apply {}
}
control Front(packet_out packet, in headers_t hdr) {
    apply { EMITS }
}
V1Switch(WeirEgressParser(), Verify(), Whole(), Nothing(), Compute(), Front()) main;
"""


_REGISTER_ACTION: Final = re.compile(
    r"RegisterAction<[^(]*\((\w+)\) (\w+) = \{\s*"
    r"void apply\(inout \S+ (\w+)(?:, out (bit<\d+>) (\w+))?\) \{(.*?)\}\s*\};",
    re.DOTALL,
)


def preprocess(source: Path) -> str:
    """Return the program in one piece, without the architecture's own text."""
    own = source.read_text().replace("#include <core.p4>", "").replace("#include <tna.p4>", "")
    command = ["cpp", "-P", "-undef", "-nostdinc", "-x", "c", "-", "-I", str(source.parent)]
    done = subprocess.run(command, input=own, cwd=source.parent, capture_output=True, text=True, check=True)
    return done.stdout


def register_programs(source: Path) -> dict[str, list[str]]:
    """Return what may be done in one step with an entry of each register."""
    programs: dict[str, list[str]] = {}
    for register, _, _, _, _, body in _REGISTER_ACTION.findall(preprocess(source)):
        programs.setdefault(register, []).append(body)
    return programs


def translate(source: Path) -> tuple[str, str]:
    """Return the v1model programs of ingress and of egress."""
    text = preprocess(source)
    text = text[: text.index("Pipeline(")]
    text = _hashes(_registers(text))
    text = re.sub(r"DirectCounter<[^;]*;", "", text)
    text = re.sub(r"\b(?:uplink|downlink)\.count\(\);|counters = \w+;", "", text)
    text = re.sub(
        r"Counter<bit<64>, bit<8>>\((\w+), [^)]*\) (\w+);",
        r"counter<bit<8>>(\1, CounterType.packets_and_bytes) \2;",
        text,
    )
    text = re.sub(r"meta = \{ ?\.\.\. ?\};", "", text)
    text = text.replace(
        "struct headers_t {", "struct headers_t { tm_t tm; egress_intrinsic_metadata_t eg_intr_md;"
    )
    checked = _between(text, "ipv4_checksum.update({", "})")
    # Constants, headers and structs; the two parsers; the controls.
    marks = ("parser WeirIngressParser", "parser WeirEgressParser", "control Aggregator")
    first, second, third = (text.index(mark) for mark in marks)
    common, ingress, egress, controls = text[:first], text[first:second], text[second:third], text[third:]
    emits = [
        " ".join(
            re.findall(r"packet\.emit\([^;]*;", _between(controls, f"control Weir{side}Deparser", "\n}"))
        )
        for side in ("Ingress", "Egress")
    ]
    controls = re.sub(
        r"control WeirIngressDeparser.*?(?=control WeirIngress\()", "", controls, flags=re.DOTALL
    )
    parsers = (
        _parser(ingress, "metadata_t"),
        _parser(egress, "egress_metadata_t").replace("eg_intr_md", "hdr.eg_intr_md"),
    )
    one, other = (
        _ARCHITECTURE + common + parser + controls + _filled(end, checked, emit)
        for parser, end, emit in zip(parsers, (_INGRESS, _EGRESS), emits, strict=True)
    )
    return one, other


def _filled(end: str, checked: str, emit: str) -> str:
    return end.replace("CHECKED", checked).replace("EMITS", emit).replace("MIRRORED", f"{MIRRORED}")


def _parser(text: str, meta: str) -> str:
    text = re.sub(
        r"parser (\w+)\([^)]*\) \{",
        rf"parser \1(packet_in packet, out headers_t hdr, inout {meta} meta, inout standard_metadata_t s) {{",
        text,
        flags=re.DOTALL,
    )
    text = re.sub(r"[^;{}]*ipv4_checksum[^;]*;", "", text)
    text = text.replace("ig_intr_md.ingress_port", "s.ingress_port")
    return re.sub(r"packet\.extract\(ig_intr_md\);|packet\.advance\(PORT_METADATA_SIZE\);", "", text)


def _between(text: str, start: str, end: str) -> str:
    begin = text.index(start) + len(start)
    return text[begin : text.index(end, begin)]


def _calls(text: str, pattern: str, replace: Callable[[re.Match[str], str], str]) -> str:
    """Replace every call that begins with what matches; `replace` gets the match and the arguments."""
    while match := re.search(pattern, text):
        depth, at = 1, match.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[at], 0)
            at += 1
        text = text[: match.start()] + replace(match, text[match.end() : at - 1]) + text[at:]
    return text


def _hashes(text: str) -> str:
    names = re.findall(r"Hash<bit<16>>\(HashAlgorithm_t\.XOR16\) (\w+);", text)
    text = re.sub(r"Hash<bit<16>>\([^;]*;", "", text)
    for name in names:
        text = _calls(
            text,
            rf"\b{name}\.get\(",
            lambda _, fields: (
                "(" + " ^ ".join(f"({field})" for field in fields.strip(" {}").split(",")) + ")"
            ),
        )
    return text


def _registers(text: str) -> str:
    """Turn registers and their actions into reads, the bodies, and writes."""
    fields = re.findall(r"struct (\w+) \{\s*bit<32> (\w+);\s*bit<32> (\w+);\s*\}", text)
    pairs = {kind: [first, second] for kind, first, second in fields}
    registers: dict[str, list[str]] = {}

    def declare(match: re.Match[str]) -> str:
        kind, size, name = match.groups()
        registers[name] = pairs.get(kind, [""])
        return "\n".join(
            f"register<bit<32>, bit<16>>({size}) {name}_{part}; bit<32> {name}_word{part};"
            for part in registers[name]
        )

    text = re.sub(r"Register<(\S+), bit<16>>\((.*?)\) (\w+);", declare, text)
    actions = {match[2]: match for match in _REGISTER_ACTION.finditer(text)}
    text = _REGISTER_ACTION.sub("", text)
    places = iter(range(10**6))

    def inline(call: re.Match[str], index: str) -> str:
        register, _, value, width, result, body = actions[call[2]].groups()
        number = next(places)
        body = _calls(body, r"this\.predicate\(", lambda _, both: _predicate(*both.split(", ")))
        body = _calls(body, r"\b(min|max)\(", lambda name, both: _lesser(name[1], *both.split(", ")))
        if result:
            body = re.sub(rf"(?<![\w.]){result}\b", f"said{number}", body)
        parts = registers[register]
        for part in parts:
            named = rf"{value}\.{part}" if part else value
            body = re.sub(rf"(?<![\w.]){named}\b", f"{register}_word{part}", body)
        reads = "".join(f"{register}_{p}.read({register}_word{p}, {index});" for p in parts)
        writes = "".join(f"{register}_{p}.write({index}, {register}_word{p});" for p in parts)
        said = f"{width} said{number} = 0;" if result else ""
        return reads + said + body + writes + (f"{call[1]} = said{number}" if call[1] else "")

    return _calls(text, r"(?:([\w.]+) = )?\b(\w+)\.execute\(", inline)


def _predicate(low: str, high: str) -> str:
    return f"(({low}) ? (({high}) ? 8w8 : 8w2) : (({high}) ? 8w4 : 8w1))"


def _lesser(name: str, one: str, other: str) -> str:
    """Return the lesser of two words, or the greater."""
    return f"({one} {'<' if name == 'min' else '>'} {other} ? {one} : {other})"
