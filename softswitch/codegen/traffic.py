# SPDX-License-Identifier: Apache-2.0
"""What happens around the pipelines: a frame's way from port to ports, as in BMv2's simple_switch.

After ingress, in this order: clone, resubmit, multicast, drop, unicast. After egress: clone, drop,
deparse, recirculate or send. What has to begin anew (clones at egress, resubmitted and recirculated
packets) waits in a queue until the packet it comes from is done with. The passes that one frame can cause
are limited, so that no program and no tables can make the switch run forever.
"""

from collections.abc import Sequence
from typing import Final

from softswitch.codegen.exposure import early_headers, parser_writes
from softswitch.codegen.layout import Layout
from softswitch.codegen.usage import pipeline_actions
from softswitch.program_ir import Clone, FieldRef, Recirculate, Resubmit, Statement
from softswitch.program_types import DROP_PORT, Pipeline

_WAITING: Final = 64  # packets that can wait at a time
_PASSES: Final = 4096  # egress passes per frame
# BMv2's instance types
_CLONED_AT_INGRESS: Final = 1
_CLONED_AT_EGRESS: Final = 2
_RECIRCULATED: Final = 4
_REPLICATED: Final = 5
_RESUBMITTED: Final = 6


class TrafficWriter:
    """Writes everything from ``process`` down to the pipelines' functions."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._kept = set(layout.metadata_fields())
        program = layout.program
        self._clones_in = self._runs(program.ingress, Clone)
        self._clones_out = self._runs(program.egress, Clone)
        self._resubmits = self._runs(program.ingress, Resubmit)
        self._recirculates = self._runs(program.egress, Recirculate)

    def text(self) -> str:
        """C text of `scratch` and ``process``."""
        parts = [
            self._types(),
            self._forget(),
            self._copy_lists(),
            self._queue(),
            self._egress_pass(),
            self._replicate(),
            self._clone_to(),
            self._ingress_pass(),
            self._process(),
        ]
        return "\n".join(part for part in parts if part)

    # -- pieces ------------------------------------------------------------------------------------

    def _runs(self, pipeline: Pipeline, kind: type[Statement]) -> bool:
        actions = pipeline_actions(self._layout.program, pipeline)
        return any(isinstance(each, kind) for action in actions for each in action.body)

    @property
    def _waits(self) -> bool:
        """Whether anything can begin anew."""
        return self._clones_out or self._resubmits or self._recirculates

    def _field(self, name: str) -> FieldRef | None:
        """The field that holds a piece of BMv2's standard or intrinsic metadata, if the program uses it."""
        aliases = self._layout.program.aliases
        found = (aliases.get(f"{group}.{name}") for group in ("intrinsic_metadata", "queueing_metadata"))
        ref = next((each for each in found if each), FieldRef("standard_metadata", name))
        return ref if ref in self._kept else None

    def _set(self, name: str, value: str, packet: str = "p") -> list[str]:
        """C statement that sets standard metadata, if the program looks at it."""
        ref = self._field(name)
        if ref is None:
            return []
        slot = self._layout.slot(ref)
        access = slot.access.replace("p->", f"{packet}->", 1)
        mask = f" & 0x{(1 << slot.bits) - 1:x}ull" if slot.bits < slot.storage else ""
        return [f"{access} = ({value}){mask};"]

    def _get(self, name: str) -> str:
        ref = self._field(name)
        return self._layout.slot(ref).access if ref else "0"

    def _types(self) -> str:
        other = "    phv other; // a clone made at ingress\n" if self._clones_in else ""
        queue = "    waiting queue[WAITING];\n" if self._waits else ""
        return f"""enum {{ WAITING = {_WAITING}, PASSES = {_PASSES} }};

// A packet that waits to begin anew: in ingress, parsed from `frame`, or as a clone in egress, where `frame`
// is its payload and `clone` where it goes.
typedef struct {{
    phv p;
    const sw_replicas *clone;
    uint32_t length;
    uint8_t frame[SW_MAX_FRAME];
}} waiting;

typedef struct {{
    phv p;
{other}    saved keep;
    uint32_t written; // bytes of headers in `out`, UINT32_MAX for none
    uint64_t written_valid[{self._layout.valid_words}]; // which headers
    uint8_t out[HEADER_BYTES + SW_MAX_FRAME + 16];
{queue}}} scratch;

typedef struct {{
    sw_state *s;
    sw_emit emit;
    void *ctx;
    uint64_t now; // microseconds
    uint32_t passes;
    uint32_t first, count; // of the queue
}} run;

static inline scratch *here(const run *r) {{ return (scratch *)r->s->scratch; }}

static inline void fresh(phv *p, uint32_t length) {{
    memset((char *)p + offsetof(phv, valid), 0, offsetof(phv, headers) - offsetof(phv, valid));
    p->length = p->ingress_length = length;
    p->truncate = UINT32_MAX;
}}
"""

    def _forget(self) -> str:
        """Clearing the storage of headers that earlier packets left and this one does not have."""
        layout = self._layout
        cases = "".join(
            f"    case {bit}: memset(&{layout.header(name)}, 0, sizeof {layout.header(name)}); break;\n"
            for name, bit in layout.header_index.items()
        )
        words = layout.valid_words
        early = dict(layout.masks(early_headers(layout.program)))
        written = dict(layout.masks(parser_writes(layout.program)))
        before = "\n".join(f"    clear(p, {w}, p->touched[{w}] & 0x{m:x}ull);" for w, m in early.items())
        after = []
        for w in range(words):
            after.append(f"    clear(p, {w}, p->touched[{w}] & ~p->valid[{w}] & ~0x{early.get(w, 0):x}ull);")
            after.append(f"    p->touched[{w}] = p->valid[{w}] | 0x{written.get(w, 0):x}ull;")
        after_text = "\n".join(after)
        return f"""static __attribute__((noinline)) void clear_header(phv *p, unsigned bit) {{
    switch (bit) {{
{cases}    }}
}}
static inline void clear(phv *p, unsigned word, uint64_t stale) {{
    for (; stale != 0; stale &= stale - 1) clear_header(p, 64 * word + (unsigned)__builtin_ctzll(stale));
}}
static inline void forget_before_parsing(phv *p) {{
    (void)p;
{before}
}}
static inline void forget_after_parsing(phv *p) {{
{after_text}
}}
"""

    def _copy_lists(self) -> str:
        if not (self._clones_in or self._waits):
            return ""
        cases = []
        for number, fields in self._layout.program.field_lists.items():
            moves = []
            for ref in fields:
                access = self._layout.slot(ref).access
                to = access.replace("p->", "q->", 1)
                moves.append(f"memcpy(&{to}, &{access}, sizeof {to});")
            cases.append(f"    case {number}: {' '.join(moves)} break;\n")
        return f"""// Resets the metadata of `q` but for the fields of a list, which it has from `p`.
static void keep_fields(phv *q, const phv *p, uint32_t list) {{
    memset(&q->m, 0, sizeof q->m);
    switch (list) {{
{"".join(cases)}    }}
}}
"""

    def _egress_pass(self) -> str:
        begin = [
            *self._set("egress_port", "port"),
            *self._set("egress_spec", f"{DROP_PORT + 1}"),
            *self._set("packet_length", "p->length"),
            *self._set("egress_global_timestamp", "r->now"),
            *self._set("enq_timestamp", "r->now"),
            *self._set("enq_qdepth", "0"),
            *self._set("deq_timedelta", "0"),
            *self._set("deq_qdepth", "0"),
        ]
        recirculate = ""
        if self._recirculates:
            recirculate = f"""    if (p->recirculate) {{
        begin_anew(r, p, c->out, total, p->recirculate, {_RECIRCULATED});
        return;
    }}
"""
        clone = ""
        if self._clones_out:
            clone = """    if (p->clone_session) clone_at_egress(r, p);
"""
        return f"""// What was written for the last replica and is the same now is not written again.
SW_HOT void send(run *r, phv *p, uint32_t port) {{
    scratch *c = here(r);
    update_checksums(p);
    if (memcmp(c->written_valid, p->valid, sizeof p->valid) != 0) c->written = UINT32_MAX;
    const uint32_t headers = deparse(p, c->out, c->written);
    if (c->written == UINT32_MAX) {{
        memcpy(c->out + headers, p->payload, p->payload_length);
        memcpy(c->written_valid, p->valid, sizeof p->valid);
        c->written = headers;
    }}
    uint32_t total = headers + p->payload_length;
    if (p->truncate < total) total = p->truncate;
{recirculate}    if (total == 0 || total > SW_MAX_FRAME) {{
        r->s->stats.packets_dropped++;
        return;
    }}
    r->s->stats.packets_out++;
    r->s->stats.bytes_out += total;
    r->emit(r->ctx, port, c->out, total);
}}

SW_HOT void egress_pass(run *r, phv *p, uint32_t port) {{
    sw_state *s = r->s;
    if (r->passes++ >= PASSES) {{
        s->stats.packets_dropped++;
        return;
    }}
{_indented(begin)}
    egress(s, p);
{clone}    if ({self._get("egress_spec")} == {DROP_PORT}) s->stats.packets_dropped++;
    else send(r, p, port);
}}
"""

    def _queue(self) -> str:
        if not self._waits:
            return ""
        sets = [*self._set("instance_type", "type", "q"), *self._set("packet_length", "length", "q")]
        anew = f"""// Queues a resubmitted or recirculated packet: its bytes and a list of its metadata.
static __attribute__((unused)) void begin_anew(run *r, const phv *p, const uint8_t *frame, uint32_t length,
                                               uint32_t list, uint32_t type) {{
    waiting *w = place(r);
    if (w == NULL || length > SW_MAX_FRAME) {{
        r->s->stats.packets_dropped++;
        return;
    }}
    phv *q = &w->p;
    (void)type;
    fresh(q, length);
    keep_fields(q, p, list);
    {" ".join(sets)}
    memcpy(w->frame, frame, length);
    w->length = length;
    w->clone = NULL;
    r->count++;
}}
"""
        clone = f"""// Queues a clone made at egress: the packet as it is now, but for its metadata.
static __attribute__((unused)) void clone_at_egress(run *r, phv *p) {{
    const sw_replicas *to = r->s->sessions[p->clone_session & 0x7fff];
    p->clone_session = 0;
    if (to == NULL) return;
    waiting *w = place(r);
    if (w == NULL) {{
        r->s->stats.packets_dropped++;
        return;
    }}
    phv *q = &w->p;
    *q = *p;
    keep_fields(q, p, p->clone_list);
    {" ".join(self._set("instance_type", str(_CLONED_AT_EGRESS), "q"))}
    q->truncate = to->packet_length ? to->packet_length : UINT32_MAX;
    q->recirculate = 0;
    memcpy(w->frame, p->payload, p->payload_length);
    q->payload = w->frame;
    w->clone = to;
    r->count++;
}}
"""
        place = """// The next free place of the queue, not yet counted; NULL when there is none.
static waiting *place(run *r) {
    return r->count == WAITING ? NULL : &here(r)->queue[(r->first + r->count) % WAITING];
}
"""
        return place + anew + clone

    def _drain(self) -> str:
        """What is queued runs in its place; what it queues itself goes behind."""
        if not self._waits:
            return ""
        return """    for (; r.count != 0; r.first = (r.first + 1) % WAITING, r.count--) {
        waiting *w = &c->queue[r.first];
        c->written = UINT32_MAX;
        if (w->clone != NULL) replicate(&r, &w->p, w->clone);
        else ingress_pass(&r, &w->p, w->frame, w->length);
    }
"""

    def _replicate(self) -> str:
        rid = " ".join(self._set("egress_rid", "to->replicas[i].rid"))
        return f"""SW_HOT void replicate(run *r, phv *p, const sw_replicas *to) {{
    saved *keep = &here(r)->keep;
    if (to->count > 1) save(keep, p);
    for (uint32_t i = 0; i < to->count; i++) {{
        if (i != 0) restore(keep, p);
        {rid}
        egress_pass(r, p, to->replicas[i].port);
    }}
}}
"""

    def _clone_to(self) -> str:
        if not self._clones_in:
            return ""
        port = self._field("ingress_port")
        access = self._layout.slot(port).access if port else None
        keep_port = f"q->{access.removeprefix('p->')} = {access};" if access else ""
        return f"""// A clone made at ingress is the packet as it came, parsed again.
static void clone_at_ingress(run *r, phv *p, const uint8_t *frame, uint32_t length) {{
    const sw_replicas *to = r->s->sessions[p->clone_session & 0x7fff];
    p->clone_session = 0;
    if (to == NULL) return;
    phv *q = &here(r)->other;
    uint32_t error = NO_ERROR;
    fresh(q, length);
    {keep_port}
    forget_before_parsing(q);
    const uint32_t parsed = parse(q, frame, length, &error);
    forget_after_parsing(q);
    q->payload = frame + parsed;
    q->payload_length = length - parsed;
    keep_fields(q, p, p->clone_list);
    {" ".join(self._set("instance_type", str(_CLONED_AT_INGRESS), "q"))}
    q->truncate = to->packet_length ? to->packet_length : UINT32_MAX;
    replicate(r, q, to);
    here(r)->written = UINT32_MAX;
}}
"""

    def _ingress_pass(self) -> str:
        clone = ""
        if self._clones_in:
            clone = "    if (p->clone_session) clone_at_ingress(r, p, frame, length);\n"
        resubmit = ""
        if self._resubmits:
            resubmit = f"""    if (p->resubmit) {{
        begin_anew(r, p, frame, length, p->resubmit, {_RESUBMITTED});
        return;
    }}
"""
        checks = [
            *self._set("parser_error", "error"),
            *self._set("checksum_error", "(uint32_t)checksums_wrong(p)"),
        ]
        return f"""SW_HOT void ingress_pass(run *r, phv *p, const uint8_t *frame, uint32_t length) {{
    sw_state *s = r->s;
    uint32_t error = NO_ERROR;
    forget_before_parsing(p);
    const uint32_t parsed = parse(p, frame, length, &error);
    forget_after_parsing(p);
    p->payload = frame + parsed;
    p->payload_length = length - parsed;
{_indented(checks)}
    ingress(s, p);
    p->exit = 0;
{clone}{resubmit}    if ({self._get("mcast_grp")} != 0) {{
        const sw_replicas *to = s->groups[{self._get("mcast_grp")}];
        if (to == NULL || to->count == 0) {{
            s->stats.packets_dropped++;
            return;
        }}
        {" ".join(self._set("instance_type", str(_REPLICATED)))}
        replicate(r, p, to);
        return;
    }}
    const uint32_t port = {self._get("egress_spec")};
    if (port == {DROP_PORT}) {{
        s->stats.packets_dropped++;
        return;
    }}
    {" ".join(self._set("instance_type", "0"))}
    egress_pass(r, p, port);
}}
"""

    def _process(self) -> str:
        begin = [
            *self._set("ingress_port", "port"),
            *self._set("packet_length", "length"),
            *self._set("ingress_global_timestamp", "r.now"),
        ]
        return f"""SW_HOT void process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t length,
                    uint64_t now_ns, sw_emit emit, void *ctx) {{
    sw_state *s = (sw_state *)sw;
    s->stats.packets_in++;
    s->stats.bytes_in += length;
    if (length > SW_MAX_FRAME) {{
        s->stats.packets_dropped++;
        return;
    }}
    run r = {{s, emit, ctx, now_ns / 1000, 0, 0, 0}};
    scratch *c = here(&r);
    phv *p = &c->p;
    c->written = UINT32_MAX;
    fresh(p, length);
    (void)port;
{_indented(begin)}
    ingress_pass(&r, p, frame, length);
{self._drain()}}}
"""


def _indented(lines: Sequence[str]) -> str:
    return "\n".join(f"    {line}" for line in lines)
