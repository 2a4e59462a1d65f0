# SPDX-License-Identifier: Apache-2.0
"""Packets between ingress and egress: what is kept of one that waits for its port (runtime/queue.h)."""

from typing import Final

from softp4.codegen.egress import egress_reads
from softp4.codegen.intrinsic import Intrinsic
from softp4.codegen.layout import Layout
from softp4.codegen.tracepoints import Tracepoints
from softp4.program.ir import FieldRef
from softp4.program.types import Program

# What a pass through egress begins with, whatever ingress left there.
_SET_AT_DEPARTURE: Final = (
    "egress_port",
    "egress_spec",
    "packet_length",
    "egress_global_timestamp",
    "enq_timestamp",
    "enq_qdepth",
    "deq_timedelta",
    "deq_qdepth",
    "qid",
)

QUEUED_TYPE: Final = """// A packet in a queue.
typedef struct {
    sw_packet base;
    phv p;
    state m;
    uint8_t payload[SW_MAX_FRAME];
} queued;
"""


def queueing_functions(layout: Layout, intrinsic: Intrinsic, trace: Tracepoints) -> str:
    """Return the C text of ``to_egress(r, p, from, to, ...)``, which sends packets to ports, and ``depart``.

    ``limited`` is a constant wherever ingress is inlined: a switch without limited ports runs code that knows
    no queues. (A test at run time, never true, made it 3 % slower.)
    """
    copies = "\n".join(f"    {each}" for each in copies_for_egress(layout, intrinsic))
    time = keep_time(layout.program)
    rid = " ".join(intrinsic.set("egress_rid", "to[i].rid", "n"))
    queued = trace.queued("sw_enqueue(r->s, port, priority, n->length, r->passes)", "to[i].port", "priority")
    return f"""static __attribute__((noinline)) uint32_t leave_apart(
    run *r, phv *p, const state *from, uint32_t port, const sw_packet *waited, uint32_t left) {{
    state m_ = *from;
    return leave(r, p, &m_, port, waited->enqueued_ns / 1000, waited->depth, left);
}}

static void hold(queued *w, const state *m, const phv *p) {{
    if (w == NULL) return;
    w->p = *p;
    w->m = *m;
    memcpy(w->payload, m->payload, m->payload_length);
    w->m.payload = w->payload;
}}

static __attribute__((noinline)) void wait_or_leave(run *r, phv *p, state *n, uint32_t priority,
                                                    const sw_replica *to, uint32_t count, int rids) {{
    const sw_packet at_once = {{.enqueued_ns = r->now * 1000}};
    saved *keep = &here(r)->keep;
    (void)rids;
    if (count > 1) save(keep, p);
    for (uint32_t i = 0; i < count; i++) {{
        if (i != 0) restore(keep, p);
        if (rids) {{ {rid} }}
        sw_queued_port *port = sw_queues_of(r->s, to[i].port);
        if (port == NULL) leave_apart(r, p, n, to[i].port, &at_once, 0);
        else hold((queued *){queued}, n, p);
    }}
}}

// Sends a packet, or copies of it, to ports.
SW_INLINE void to_egress(run *r, phv *p, const state *from, const sw_replica *to, uint32_t count, int rids,
                         int limited) {{
    if (!limited) {{
        replicate(r, p, from, to, count, rids);
        return;
    }}
    state *n = &here(r)->left;
{copies}
    wait_or_leave(r, p, n, {intrinsic.get("priority", "from")}, to, count, rids);
}}

// A packet's turn: its egress, and whatever that sets off.
static uint32_t depart(sw_state *s, sw_packet *packet, uint32_t port, uint64_t now_ns, uint32_t depth,
                       sw_emit emit, void *ctx) {{
    queued *w = (queued *)packet;
    run r = {{s, emit, ctx, now_ns / 1000, packet->passes, 0, 0}};
    here(&r)->written = UINT32_MAX;
{time}{trace.turn()}    const uint32_t sent = leave_apart(&r, &w->p, &w->m, port, packet, depth);
    begin_waiting(&r, 1);
    packet->passes = r.passes;
    return sent;
}}
"""


def keep_time(program: Program) -> str:
    """Return the C text that tells meters and idle times the time, if the program has any."""
    needed = program.meters or any(table.ages for table in program.tables.values())
    return "    s->now = now_ns;\n" if needed else ""


def copies_for_egress(layout: Layout, intrinsic: Intrinsic) -> list[str]:
    """Return C statements that copy what egress may read of ``state *from`` to ``state *n``.

    The queue, which is the priority that ingress chose, is noted here too.
    """
    overwritten = {intrinsic.field(name) for name in _SET_AT_DEPARTURE}
    kept = egress_reads(layout.program)
    fields: list[FieldRef] = [
        ref for ref in layout.metadata_fields() if ref in kept and ref not in overwritten
    ]
    names = [layout.slot(ref).access[3:] for ref in fields]
    names += ["payload", "valid", "payload_length", "ingress_length", "length", "truncate", "recirculate"]
    names += layout.counts()
    wide = {slot.access[3:] for slot in map(layout.slot, fields) if slot.storage > 128 and not slot.varbit}
    copies = [
        f"memcpy(n->{name}, from->{name}, sizeof n->{name});"
        if name in wide or name == "valid"
        else f"n->{name} = from->{name};"
        for name in names
    ]
    return copies + intrinsic.set("qid", intrinsic.get("priority", "from"), "n")
