/* SPDX-License-Identifier: Apache-2.0 */
/* Sends a frame over a shared-memory port as fast as the switch takes it, and checks every answer. */
#include "ring.h"

enum { WINDOW = 512, QUERY = 30, ANSWER = 22, NUMBER = 8, FIELDS = 24 };

static const int64_t TIMEOUT = 20000000000; /* nanoseconds: other tests may hold the cores */

typedef struct {
    uint64_t answers;
    uint64_t missing; /* numbers that were skipped, or did not come within TIMEOUT at the end */
    uint64_t torn;    /* the fields of one entry are not of one version */
    uint64_t apart;   /* the two tables are not of one version */
} flood_result;

static uint64_t load(const uint8_t *bytes, unsigned count)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < count; i++) value = value << 8 | bytes[i];
    return value;
}

static void check(const uint8_t *pair, flood_result *result)
{
    uint64_t first = load(pair, 8), different = 0;
    for (unsigned i = 1; i < FIELDS; i++) different |= first ^ load(pair + 8 * i, 8);
    result->torn += different != 0;
    result->apart += load(pair + 8 * FIELDS, 8) != load(pair + 8 * (FIELDS - 1), 8);
}

static void take(sp4_port *port, uint64_t *expected, flood_result *result)
{
    uint32_t length;
    const uint8_t *frame;
    while ((frame = sp4_port_peek(port, SP4_SIDE_HOST, &length)) != NULL) {
        uint64_t number = load(frame + length - NUMBER, NUMBER);
        check(frame + ANSWER, result);
        result->answers++;
        result->missing += number - *expected;
        *expected = number + 1;
        sp4_port_release(port, SP4_SIDE_HOST);
    }
}

/* `query` is what is sent, QUERY bytes, with a number behind. Ends when `*stop` becomes non-zero. */
void flood(sp4_port *port, const uint8_t *query, const volatile int *stop, flood_result *result)
{
    uint8_t frame[QUERY + NUMBER];
    uint64_t sent = 0, expected = 0;
    memcpy(frame, query, QUERY);
    while (!*stop) {
        for (; sent - expected < WINDOW; sent++) {
            for (int i = 0; i < NUMBER; i++) frame[QUERY + i] = (uint8_t)(sent >> (56 - 8 * i));
            if (sp4_port_send(port, SP4_SIDE_HOST, frame, sizeof frame) != 0) break;
        }
        sp4_port_notify(port, SP4_SIDE_HOST);
        sp4_port_wait(port, SP4_SIDE_HOST, 1000000000);
        take(port, &expected, result);
    }
    while (expected < sent && sp4_port_wait(port, SP4_SIDE_HOST, TIMEOUT)) take(port, &expected, result);
    result->missing += sent - expected;
}
