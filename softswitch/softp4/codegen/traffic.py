# SPDX-License-Identifier: Apache-2.0
"""Traffic around the pipelines: a frame's way from port to ports, as in BMv2's simple_switch.

After ingress, in this order: clone, resubmit, multicast, drop, unicast. A packet for a limited port then
waits in a queue (codegen/queueing.py). After egress: clone, drop, deparse, recirculate or send. What has to
start again (clones at egress, resubmitted and recirculated packets) waits until the packet it comes from is
done with. The passes that one frame can cause are limited, so that no program and no tables can make the
switch run forever.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from softp4.codegen.digests import digest_function
from softp4.codegen.intrinsic import Intrinsic, keep_fields_function
from softp4.codegen.layout import Layout
from softp4.codegen.queueing import QUEUED_TYPE, copies_for_egress, keep_time, queueing_functions
from softp4.codegen.tracepoints import Lost, TraceKind, Tracepoints
from softp4.codegen.usage import pipeline_actions
from softp4.program.ir import Clone, Recirculate, Resubmit, Statement, can_fail
from softp4.program.types import DROP_PORT, Pipeline

_WAITING: Final = 64  # packets that can wait at a time
_PASSES: Final = 4096  # egress passes per frame
# BMv2's instance types
_CLONED_AT_INGRESS: Final = 1
_CLONED_AT_EGRESS: Final = 2
_RECIRCULATED: Final = 4
_REPLICATED: Final = 5
_RESUBMITTED: Final = 6


class TrafficWriter:
    """Writes everything from ``process`` down to the pipelines' functions.

    Args:
        layout: the layout.
        trace: the tracepoints to write.
        lengths_change: whether egress may change how long a header is: then nothing of one replica's headers
            stays as it is for the next.
    """

    def __init__(self, layout: Layout, trace: Tracepoints, lengths_change: bool) -> None:
        self._layout = layout
        self._trace = trace
        self._lengths_change = lengths_change
        self._intrinsic = Intrinsic(layout)
        program = layout.program
        self._clones_in = self._runs(program.ingress, Clone)
        self._clones_out = self._runs(program.egress, Clone)
        self._resubmits = self._runs(program.ingress, Resubmit)
        self._recirculates = self._runs(program.egress, Recirculate)

    def text(self) -> str:
        """Return the C text of `scratch` and ``process``."""
        parts = [
            self._types(),
            digest_function(self._layout) if self._layout.program.digests else "",
            keep_fields_function(self._layout) if self._clones_in or self._waits else "",
            self._queue(),
            self._send(),
            self._leave(),
            self._replicate(),
            "SW_INLINE void begin_waiting(run *r, int limited);\n",
            queueing_functions(self._layout, self._intrinsic, self._trace),
            self._clone_at_ingress(),
            self._ingress_pass(),
            self._begin_waiting(),
            self._process(),
        ]
        return "\n".join(part for part in parts if part)

    # -- what the program uses ---------------------------------------------------------------------

    def _runs(self, pipeline: Pipeline, kind: type[Statement]) -> bool:
        return any(isinstance(each, kind) for each in self._statements(pipeline))

    def _statements(self, pipeline: Pipeline) -> list[Statement]:
        actions = pipeline_actions(self._layout.program, pipeline)
        return [each for action in actions for each in action.body]

    def _end_if_failed(self, statements: Iterable[object], leave: str, switch: str = "s") -> str:
        """Return the C text that ends a packet when an assertion among these statements has failed."""
        if not any(map(can_fail, statements)):
            return ""
        lost = self._trace.lost(8, Lost.ASSERTION)
        return (
            f"    if (SW_RARE(m->exit == SW_ASSERTION_FAILED)) {{\n{lost}"
            f"        {switch}->stats.packets_dropped++;\n        {leave}\n    }}\n"
        )

    @property
    def _waits(self) -> bool:
        """Return whether anything can start again."""
        return self._clones_out or self._resubmits or self._recirculates

    @property
    def _linkage(self) -> str:
        """Linkage of functions that have one caller unless packets can be cloned or start again."""
        return "SW_HOT" if self._waits or self._clones_in else "SW_INLINE"

    # -- pieces ------------------------------------------------------------------------------------

    def _types(self) -> str:
        other = "    phv other; // a clone made at ingress\n" if self._clones_in else ""
        queue = "    waiting queue[WAITING];\n" if self._waits else ""
        return f"""enum {{ WAITING = {_WAITING}, PASSES = {_PASSES} }};

// A packet that waits to start again: in ingress, parsed from `frame`, or as a clone in egress, where `frame`
// is its payload and `clone` where it goes.
typedef struct {{
    phv p;
    state m;
    const sw_replicas *clone;
    uint32_t length;
    uint8_t frame[SW_MAX_FRAME];
}} waiting;

typedef struct {{
    phv p;
{other}    saved keep;
    state left; // by ingress, for a packet that may have to wait
    uint32_t written; // bytes of headers in `out`, UINT32_MAX for none
    uint64_t written_valid[{self._layout.valid_words}]; // which headers
    uint8_t out[HEADER_BYTES + SW_MAX_FRAME + 16];
{queue}}} scratch;

{QUEUED_TYPE}
typedef struct {{
    sw_state *s;
    sw_emit emit;
    void *ctx;
    uint64_t now; // microseconds
    uint32_t passes;
    uint32_t first, count; // of the packets that wait to start again
}} run;

static inline scratch *here(const run *r) {{ return (scratch *)r->s->scratch; }}

SW_INLINE void fresh(state *m, uint32_t length) {{
    *m = (state){{0}};
    m->length = m->ingress_length = length;
    m->truncate = UINT32_MAX;
}}
"""

    def _queue(self) -> str:
        if not self._waits:
            return ""
        sets = [
            *self._intrinsic.set("instance_type", "type", "n"),
            *self._intrinsic.set("packet_length", "length", "n"),
        ]
        return f"""// The next free place of the queue, not yet counted; without one, NULL and a lost packet.
static waiting *place(run *r) {{
    if (r->count != WAITING) return &here(r)->queue[(r->first + r->count) % WAITING];
{self._trace.lost(4, Lost.WAITING)}    r->s->stats.packets_dropped++;
    return NULL;
}}

// Queues a resubmitted or recirculated packet: its bytes and a list of its metadata.
static __attribute__((unused)) void begin_anew(run *r, const state *m, const uint8_t *frame, uint32_t length,
                                               uint32_t list, uint32_t type) {{
    waiting *w = place(r);
    if (w == NULL) return;
    state *n = &w->m;
    (void)type;
    fresh(n, length);
    keep_fields(n, m, list);
    {" ".join(sets)}
    memcpy(w->frame, frame, length);
    w->length = length;
    w->clone = NULL;
    r->count++;
}}

// Queues a clone made at egress: the packet as it is now, but for its metadata.
static __attribute__((unused)) void clone_at_egress(run *r, const phv *p, state *m) {{
    const sw_replicas *to = r->s->sessions[m->clone_session & 0x7fff];
{self._trace.clone("m->clone_session")}    m->clone_session = 0;
    if (to == NULL) return;
    waiting *w = place(r);
    if (w == NULL) return;
    state *n = &w->m;
    w->p = *p;
    *n = *m;
    keep_fields(n, m, m->clone_list);
    {" ".join(self._intrinsic.set("instance_type", str(_CLONED_AT_EGRESS), "n"))}
    n->truncate = to->packet_length ? to->packet_length : UINT32_MAX;
    n->recirculate = 0;
    memcpy(w->frame, m->payload, m->payload_length);
    n->payload = w->frame;
    w->clone = to;
    r->count++;
}}
"""

    def _send(self) -> str:
        recirculate = ""
        if self._recirculates:
            shown = self._trace.text(8, TraceKind.RECIRCULATE, 0, "total")
            recirculate = f"""    if (m->recirculate && total <= SW_MAX_FRAME) {{
{shown}        begin_anew(r, m, c->out, total, m->recirculate, {_RECIRCULATED});
        return 0;
    }}
"""
        again = "    c->written = UINT32_MAX;\n" if self._lengths_change else ""
        program = self._layout.program
        body = "    deparser_body(r->s, p, m);\n" if program.deparser_body else ""
        body += self._end_if_failed(program.deparser_body, "return 0;", "r->s")
        return f"""// Returns the length of the frame that goes out, 0 for none.
// What was written for the last replica and is the same now is not written again.
SW_INLINE uint32_t send(run *r, phv *p, state *m, uint32_t port) {{
    scratch *c = here(r);
    update_checksums(r->s, p, m);
{body}{again}    for (unsigned i = 0; i < {self._layout.valid_words}; i++)
        if (c->written_valid[i] != m->valid[i]) c->written = UINT32_MAX;
    const uint32_t headers = deparse(p, m, c->out, c->written);
    if (c->written == UINT32_MAX) {{
        memcpy(c->out + headers, m->payload, m->payload_length);
        for (unsigned i = 0; i < {self._layout.valid_words}; i++) c->written_valid[i] = m->valid[i];
        c->written = headers;
    }}
    uint32_t total = headers + m->payload_length;
    if (m->truncate < total) total = m->truncate;
{recirculate}    if (total == 0 || total > SW_MAX_FRAME) {{
{self._trace.lost(8, Lost.TOO_LONG, "total")}        r->s->stats.packets_dropped++;
        return 0;
    }}
{self._trace.text(4, TraceKind.OUT, "port", "total")}    r->s->stats.packets_out++;
    r->s->stats.bytes_out += total;
    r->emit(r->ctx, port, c->out, total);
    return total;
}}
"""

    def _leave(self) -> str:
        begin = [
            *self._intrinsic.set("egress_port", "port"),
            *self._intrinsic.set("egress_spec", f"{DROP_PORT + 1}"),
            *self._intrinsic.set("packet_length", "m->length"),
            *self._intrinsic.set("egress_global_timestamp", "r->now"),
            *self._intrinsic.set("enq_timestamp", "entered"),
            *self._intrinsic.set("enq_qdepth", "found"),
            *self._intrinsic.set("deq_timedelta", "(uint32_t)(r->now - entered)"),
            *self._intrinsic.set("deq_qdepth", "left"),
        ]
        clone = "    if (m->clone_session) clone_at_egress(r, p, m);\n" if self._clones_out else ""
        failed = self._end_if_failed(self._statements(self._layout.program.egress), "return 0;")
        return f"""// One egress pass. The packet entered the port's queue at `entered` (microseconds), found
// `found` there and leaves `left` behind. Returns the length of the frame that goes out, 0 for none.
SW_INLINE uint32_t leave(run *r, phv *p, state *m, uint32_t port, uint64_t entered, uint32_t found,
                         uint32_t left) {{
    sw_state *s = r->s;
    (void)entered, (void)found, (void)left;
    if (r->passes++ >= PASSES) {{
{self._trace.lost(8, Lost.PASSES, "PASSES")}        s->stats.packets_dropped++;
        return 0;
    }}
{_indented(begin)}
{self._trace.text(4, TraceKind.PIPELINE, 1, "port", self._intrinsic.get("egress_rid"))}    egress(s, p, m);
{failed}{clone}    if ({self._intrinsic.get("egress_spec")} != {DROP_PORT}) return send(r, p, m, port);
{self._trace.text(4, TraceKind.EGRESS_DROP)}    s->stats.packets_dropped++;
    return 0;
}}
"""

    def _replicate(self) -> str:
        rid = " ".join(self._intrinsic.set("egress_rid", "to[i].rid"))
        copies = _indented(copies_for_egress(self._layout, self._intrinsic), 8)
        return f"""// Egress once per replica, each beginning with what ingress left. Unicast has no rid.
// What egress may read is copied field by field: compilers keep large structs that are copied in memory.
{self._linkage} void replicate(run *r, phv *p, const state *from, const sw_replica *to, uint32_t count,
                      int rids) {{
    saved *keep = &here(r)->keep;
    (void)rids;
    if (count > 1) save(keep, p);
    for (uint32_t i = 0; i < count; i++) {{
        if (i != 0) restore(keep, p);
        state n_, *const n = &n_, *const m = n;
        n->clone_session = n->clone_list = n->resubmit = n->exit = 0;
{copies}
        if (rids) {{ {rid} }}
        leave(r, p, m, to[i].port, r->now, 0, 0);
    }}
}}
"""

    def _clone_at_ingress(self) -> str:
        if not self._clones_in:
            return ""
        port = self._intrinsic.field("ingress_port")
        access = self._layout.slot(port).access if port else None
        keep_port = f"n->{access[3:]} = {access};" if access else ""
        return f"""// A clone made at ingress is the packet as it came, parsed again.
static void clone_at_ingress(run *r, state *from, const uint8_t *frame, uint32_t length, int limited) {{
    const sw_replicas *to = r->s->sessions[from->clone_session & 0x7fff];
{self._trace.clone("from->clone_session")}    from->clone_session = 0;
    if (to == NULL) return;
    phv *q = &here(r)->other;
    uint32_t error = NO_ERROR;
    state n_, *const n = &n_;
    fresh(n, length);
    {{
        const state *m = from;
        {keep_port}
    }}
{self._trace.text(4, TraceKind.PASS, _CLONED_AT_INGRESS, "length")}    forget_before_parsing(q);
    const uint32_t parsed = parse(r->s, q, n, frame, length, &error);
    forget_after_parsing(q, n);
    n->payload = frame + parsed;
    n->payload_length = length - parsed;
    keep_fields(n, from, from->clone_list);
    {" ".join(self._intrinsic.set("instance_type", str(_CLONED_AT_INGRESS), "n"))}
    n->truncate = to->packet_length ? to->packet_length : UINT32_MAX;
    to_egress(r, q, n, to->replicas, to->count, 1, limited);
    here(r)->written = UINT32_MAX;
}}
"""

    def _ingress_pass(self) -> str:
        clone = ""
        if self._clones_in:
            clone = "    if (m->clone_session) clone_at_ingress(r, m, frame, length, limited);\n"
        resubmit = ""
        if self._resubmits:
            resubmit = f"""    if (m->resubmit) {{
{self._trace.text(8, TraceKind.RESUBMIT)}        begin_anew(r, m, frame, length, m->resubmit, {_RESUBMITTED});
        return;
    }}
"""
        digest = "    if (m->digest) tell(s, p, m);\n" if self._layout.program.digests else ""
        checks = [
            *self._intrinsic.set("parser_error", "error"),
            *self._intrinsic.set("checksum_error", "(uint32_t)checksums_wrong(s, p, m)"),
            *self._trace.checksum(),
            *self._trace.record(TraceKind.PIPELINE, 0),
        ]
        program = self._layout.program
        in_parser = [op for state in program.parser.states.values() for op in state.ops]
        parse_failed = self._end_if_failed(in_parser, "return;")
        failed = self._end_if_failed(self._statements(program.ingress), "return;")
        return f"""{self._linkage} void ingress_pass(run *r, phv *p, state *m, const uint8_t *frame,
                         uint32_t length, int limited) {{
    sw_state *s = r->s;
    uint32_t error = NO_ERROR;
    forget_before_parsing(p);
    const uint32_t parsed = parse(s, p, m, frame, length, &error);
    forget_after_parsing(p, m);
    m->payload = frame + parsed;
    m->payload_length = length - parsed;
{parse_failed}{_indented(checks)}
    ingress(s, p, m);
{failed}    m->exit = 0;
{clone}{digest}{resubmit}    sw_replica single = {{{self._intrinsic.get("egress_spec")}, 0}};
    const sw_replica *to = &single;
    uint32_t count = single.port != {DROP_PORT};
    const uint32_t group = {self._intrinsic.get("mcast_grp")};
    if (group != 0) {{
        const sw_replicas *replicas = s->groups[group];
        count = replicas == NULL ? 0 : replicas->count;
        to = replicas == NULL ? NULL : replicas->replicas;
        {" ".join(self._intrinsic.set("instance_type", str(_REPLICATED)))}
    }} else {{
        {" ".join(self._intrinsic.set("instance_type", "0"))}
    }}
{self._trace.destination("single.port", "group")}    if (count == 0) s->stats.packets_dropped++;
    else to_egress(r, p, m, to, count, group != 0, limited);
}}
"""

    def _begin_waiting(self) -> str:
        drain = ""
        if self._waits:
            shown = "".join(
                f"\n        {each}" for each in self._trace.record(TraceKind.PASS, 0, "w->length")
            )
            drain = f"""    for (; r->count != 0; r->first = (r->first + 1) % WAITING, r->count--) {{
        waiting *w = &here(r)->queue[r->first];
        here(r)->written = UINT32_MAX;{shown}
        if (w->clone != NULL) to_egress(r, &w->p, &w->m, w->clone->replicas, w->clone->count, 1, limited);
        else ingress_pass(r, &w->p, &w->m, w->frame, w->length, limited);
    }}
"""
        return f"""// What waits to start again runs in its place; what it lets wait itself goes behind.
SW_INLINE void begin_waiting(run *r, int limited) {{
    (void)r, (void)limited;
{drain}}}
"""

    def _process(self) -> str:
        begin = [
            *self._intrinsic.set("ingress_port", "port"),
            *self._intrinsic.set("packet_length", "length"),
            *self._intrinsic.set("ingress_global_timestamp", "r.now"),
        ]
        time = keep_time(self._layout.program)
        return f"""SW_INLINE void process_frame(sw_switch *sw, uint32_t port, const uint8_t *frame,
                             uint32_t length, uint64_t now_ns, sw_emit emit, void *ctx, int limited) {{
    sw_state *s = (sw_state *)sw;
    s->stats.packets_in++;
    s->stats.bytes_in += length;
{time}{self._trace.begin("port", "length", "now_ns")}    if (length > SW_MAX_FRAME) {{
{self._trace.lost(8, Lost.TOO_LONG, "length")}        s->stats.packets_dropped++;
        return;
    }}
    run r = {{s, emit, ctx, now_ns / 1000, 0, 0, 0}};
    scratch *c = here(&r);
    state m_, *const m = &m_;
    c->written = UINT32_MAX;
    fresh(m, length);
    (void)port;
{_indented(begin)}
    ingress_pass(&r, &c->p, m, frame, length, limited);
    begin_waiting(&r, limited);
}}

SW_HOT void process(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t length, uint64_t now_ns,
                    sw_emit emit, void *ctx) {{
    process_frame(sw, port, frame, length, now_ns, emit, ctx, 0);
}}

SW_HOT void process_limited(sw_switch *sw, uint32_t port, const uint8_t *frame, uint32_t length,
                            uint64_t now_ns, sw_emit emit, void *ctx) {{
    process_frame(sw, port, frame, length, now_ns, emit, ctx, 1);
}}
"""


def _indented(lines: Sequence[str], by: int = 4) -> str:
    return "\n".join(" " * by + line for line in lines)
