/* SPDX-License-Identifier: Apache-2.0 */
/* When a slot's packet goes out again.
 *
 * A packet counts as lost when something that was sent well after it has been answered, or when nothing at all
 * came for as long as answers take. Both may be wrong, so what is done about it first costs little: a release,
 * or a packet without lanes that asks what the aggregator has. Lanes go out again when it says that they are
 * missing, or when the retransmission timeout is over. */
#include "recover.h"

enum { QUIET_PROBES = 8 };

void weir_send_again(weir_transport *t, uint32_t s, uint8_t reason)
{
    slot_state *slot = &t->slots[s];
    slot->due |= reason;
    if (slot->queued) return;
    uint32_t at = t->again_head + t->again_length++;
    t->again[at >= t->config.slots ? at - t->config.slots : at] = (uint16_t)s;
    slot->queued = 1;
}

uint32_t weir_take_again(weir_transport *t)
{
    uint32_t s = t->again[t->again_head];
    t->again_head = t->again_head + 1 == t->config.slots ? 0 : t->again_head + 1;
    t->again_length--;
    t->slots[s].queued = 0;
    return s;
}

/* Whether asking costs little: not where the switch cannot lengthen packets, and answers by asking for lanes. */
static int may_ask(const weir_transport *t, const slot_state *slot)
{
    return !t->fills || (slot->reserved && !slot->wanted);
}

/* What another worker lost may be there so much later than answers: it asks, is asked, and sends. */
static int64_t repair_time(const weir_transport *t) { return weir_on_path(t) ? 2 * t->path.smooth_ns : 0; }

/* When a slot's retransmission timeout is over that runs since then. */
static int64_t timeout_end(const weir_transport *t, uint32_t s, int64_t since_ns)
{
    return since_ns + repair_time(t) +
           weir_rtt_backed_off(&t->rtt, t->rtt.late.timeout_ns, t->slots[s].timeouts);
}

/* When to ask what became of what was sent for a lost packet. */
static int64_t repair_end(const weir_transport *t, uint32_t s)
{
    const slot_state *slot = &t->slots[s];
    const uint32_t doubled = slot->attempts > 2 ? slot->attempts - 2u : 0;
    return slot->last_ns + weir_rtt_backed_off(&t->rtt, weir_path_timeout(&t->path), doubled);
}

void weir_arm_timer(weir_transport *t, uint32_t s, int64_t now_ns)
{
    if (t->slots[s].suspect && repair_end(t, s) < t->path.look_ns) t->path.look_ns = repair_end(t, s);
    int64_t deadline = t->heard || s == 0 ? timeout_end(t, s, now_ns) : WEIR_NEVER;
    t->deadlines[s] = deadline;
    if (deadline < t->earliest) t->earliest = deadline;
}

void weir_hear(weir_transport *t, int64_t now_ns)
{
    t->heard = 1;
    for (uint32_t s = 0; s < t->used; s++)
        if (t->slots[s].active && t->slots[s].sends && !t->slots[s].due) weir_arm_timer(t, s, now_ns);
}

/* The slot's packet, or its answer, is not under way any more. */
static void suspect(weir_transport *t, uint32_t s, int64_t now_ns)
{
    slot_state *slot = &t->slots[s];
    if (slot->suspect || !weir_on_path(t)) return;
    slot->suspect = 1;
    slot->suspect_ns = now_ns;
    t->suspects++;
}

static void ask(weir_transport *t, uint32_t s, int64_t now_ns)
{
    t->window.lost = 1;
    suspect(t, s, now_ns);
    if (t->slots[s].attempts < UINT8_MAX) t->slots[s].attempts++;
    weir_send_again(t, s, WEIR_DUE_EARLY);
}

/* Nothing is heard any more. */
static void silence(weir_transport *t, int64_t now_ns)
{
    if (!weir_on_path(t)) {
        weir_window_silence(&t->window);
        return;
    }
    weir_path_silence(&t->path, now_ns);
    t->window.limit = weir_path_limit(&t->path);
}

static void time_out(weir_transport *t, uint32_t s, int64_t now_ns)
{
    slot_state *slot = &t->slots[s];
    t->report.timeouts++;
    if (slot->timeouts < UINT8_MAX && ++slot->timeouts == 2 && t->heard)
        silence(t, now_ns); /* one may be chance, and a late worker is no congestion */
    if (t->heard) suspect(t, s, now_ns);
    weir_send_again(t, s, WEIR_DUE_TIMER);
    weir_replay_timeout(t, now_ns);
}

/* A deadline that has passed moves when answers have meanwhile turned out to take longer. */
static void expire_timers(weir_transport *t, int64_t now_ns)
{
    t->earliest = WEIR_NEVER;
    for (uint32_t s = 0; s < t->used; s++) {
        const slot_state *slot = &t->slots[s];
        if (!slot->active || !slot->sends || slot->due) continue;
        if (t->deadlines[s] <= now_ns) t->deadlines[s] = timeout_end(t, s, slot->last_ns);
        if (t->deadlines[s] <= now_ns)
            time_out(t, s, now_ns);
        else if (t->deadlines[s] < t->earliest)
            t->earliest = t->deadlines[s];
    }
}

/* Ask about the packets that were sent well before one that has been answered; RACK (RFC 8985). Of those that take
 * the same way, that is the reordering window; of all others, as long as answers take. */
static void find_overtaken(weir_transport *t, int64_t now_ns)
{
    /* Long round trips say little about reordering. */
    int64_t part = t->rtt.early.mean_ns / (weir_on_path(t) ? 8 : 2), early = weir_rtt_early(&t->rtt);
    int64_t window = (part > t->config.reordering_ns ? part : t->config.reordering_ns) << t->rtt.caution;
    for (uint32_t s = weir_unanswered_oldest(&t->unanswered); s != t->unanswered.end;
         s = t->unanswered.links[s].newer) {
        const slot_state *slot = &t->slots[s];
        if (slot->last_ns + (window < early ? window : early) >= t->answered_ns) return;
        int64_t same = slot->last_ns + weir_rtt_backed_off(&t->rtt, window, slot->attempts);
        int64_t other = slot->last_ns + weir_rtt_backed_off(&t->rtt, early, slot->attempts);
        if (!slot->due && may_ask(t, slot) &&
            (same < t->answered_kind_ns[slot->kind] || other < t->answered_ns))
            ask(t, s, now_ns);
    }
}

/* How long nothing may happen until we ask; WEIR_NEVER when it is for the retransmission timeouts to act. */
static int64_t quiet_wait(const weir_transport *t)
{
    const int path = weir_on_path(t) && t->path.smooth_ns;
    int64_t early = path ? weir_path_timeout(&t->path) : weir_rtt_early(&t->rtt);
    int64_t wait = weir_rtt_backed_off(&t->rtt, early, t->quiet_times);
    return wait < repair_time(t) + t->rtt.late.timeout_ns && (!t->fills || t->budget.count) ? wait
                                                                                            : WEIR_NEVER;
}

/* Nothing came for a while. Ask about a few of the oldest packets, as a tail loss probe does (RFC 8985): one
 * answer is enough to set all else going. */
static void break_silence(weir_transport *t, int64_t now_ns)
{
    int64_t wait = quiet_wait(t);
    if (wait == WEIR_NEVER || now_ns - t->quiet_ns < wait) return;
    t->quiet_ns = now_ns;
    t->quiet_times++;
    uint32_t asked = 0;
    for (uint32_t s = weir_unanswered_oldest(&t->unanswered); s != t->unanswered.end && asked < QUIET_PROBES;
         s = t->unanswered.links[s].newer)
        if (!t->slots[s].due && (t->heard || s == 0) && may_ask(t, &t->slots[s])) {
            ask(t, s, now_ns);
            asked++;
        }
}

/* On a path, what was sent for a lost packet may be lost as well, and at the end of a reduce nothing overtakes it. */
static void ask_again(weir_transport *t, int64_t now_ns)
{
    const int64_t timeout = weir_path_timeout(&t->path);
    int64_t next = WEIR_NEVER;
    for (uint32_t s = weir_unanswered_oldest(&t->unanswered); s != t->unanswered.end;
         s = t->unanswered.links[s].newer) {
        const slot_state *slot = &t->slots[s];
        const int recent = slot->last_ns + timeout > now_ns;
        const int64_t end = recent ? slot->last_ns + timeout : repair_end(t, s);
        if (recent || (slot->suspect && !slot->due && may_ask(t, slot))) {
            if (end <= now_ns)
                ask(t, s, now_ns);
            else if (end < next)
                next = end;
        }
        if (recent) break;
    }
    t->path.look_ns = next > now_ns + timeout / 8 ? next : now_ns + timeout / 8;
}

void weir_recover(weir_transport *t, int64_t now_ns)
{
    if (!t->active) {
        weir_replay_rested(t, now_ns);
        return;
    }
    if (now_ns >= t->earliest) expire_timers(t, now_ns);
    if (!t->outstanding) return;
    if (weir_on_path(t) && t->suspects && now_ns >= t->path.look_ns) ask_again(t, now_ns);
    if (weir_on_path(t) || now_ns - t->quiet_ns >= t->rtt.early.timeout_ns) break_silence(t, now_ns);
    if (t->slots[weir_unanswered_oldest(&t->unanswered)].last_ns < t->answered_ns - t->config.reordering_ns)
        find_overtaken(t, now_ns);
}

int64_t weir_transport_deadline(const weir_transport *t)
{
    if (!t->active) return t->replay_ns;
    int64_t due = t->earliest, wait = t->outstanding ? quiet_wait(t) : WEIR_NEVER;
    if (wait != WEIR_NEVER && t->quiet_ns + wait < due) due = t->quiet_ns + wait;
    if (weir_on_path(t) && t->suspects && t->path.look_ns < due) due = t->path.look_ns;
    if (weir_on_path(t) && t->ready.length && !weir_full(t) && weir_path_chunk(&t->path) < due)
        due = weir_path_chunk(&t->path);
    return due;
}
