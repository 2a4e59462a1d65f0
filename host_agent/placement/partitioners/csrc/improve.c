// SPDX-License-Identifier: Apache-2.0
// Moves samples between machines one by one, while that gains something (improve.py says what of).

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { MOST_MACHINES = 256 };

struct partition {
    int64_t machines;
    const int64_t *starts;   // [samples + 1], of each sample's features
    const int64_t *features; // [starts[samples]]
    int64_t *places;         // [samples], the machine of each
    int64_t *sizes;          // [machines], samples of each
    int32_t *counts;         // [width][machines], samples of a machine that use a feature
    int32_t *degree;         // [width], machines that do
    int64_t *alone;          // [machines], features that it alone uses
    double *load;            // [machines], values that it pulls and serves, by estimate
    int64_t most_samples;
    int64_t most_parameters;
    double limit; // of load, beyond which it costs something
    double bound; // of load, beyond which it costs much
    double dear;  // how much
};

// What a parameter with this many users costs each of them on average, pulling and serving.
static double share(int32_t degree) { return degree > 0 ? 2.0 * (degree - 1) / degree : 0.0; }

static double hinge(const struct partition *p, double load)
{
    return fmax(load - p->limit, 0.0) + p->dear * fmax(load - p->bound, 0.0);
}

static int64_t over(const struct partition *p, int64_t alone)
{
    return alone > p->most_parameters ? alone - p->most_parameters : 0;
}

// Returns the machine where a sample costs least, and what that gains.
static int64_t best_place(const struct partition *p, int64_t sample, double *gain)
{
    int64_t machines = p->machines, here = p->places[sample];
    double new_pairs[MOST_MACHINES], load[MOST_MACHINES];
    int64_t joined[MOST_MACHINES];
    memset(new_pairs, 0, sizeof new_pairs);
    memset(load, 0, sizeof load);
    memset(joined, 0, sizeof joined);
    double lost = 0, load_here_base = 0;
    double load_here[MOST_MACHINES];
    memset(load_here, 0, sizeof load_here);
    int64_t away = 0, joined_all = 0;
    for (int64_t i = p->starts[sample]; i < p->starts[sample + 1]; i++) {
        int64_t f = p->features[i];
        const int32_t *count = p->counts + f * machines;
        int32_t degree = p->degree[f];
        int last = count[here] == 1;
        double now = share(degree), more = share(degree + 1), less = share(degree - 1);
        lost += last;
        away += degree == 1;
        joined_all += last && degree == 1;
        load_here_base -= last ? now : 0.0;
        for (int64_t m = 0; m < machines; m++) {
            if (count[m] == 0) {
                new_pairs[m] += 1;
                load[m] += last ? now : more;
                load_here[m] += last ? 0.0 : more - now;
            } else if (last) {
                load[m] += less - now;
                joined[m] += degree == 2;
            }
        }
    }
    double lowest = 0;
    int64_t there = here;
    for (int64_t m = 0; m < machines; m++) {
        if (m == here || p->sizes[m] >= p->most_samples) continue;
        double cost = new_pairs[m] - lost;
        cost += (double)(over(p, p->alone[here] - away) - over(p, p->alone[here]));
        cost += (double)(over(p, p->alone[m] + joined_all + joined[m]) - over(p, p->alone[m]));
        cost += hinge(p, p->load[here] + load_here_base + load_here[m]) - hinge(p, p->load[here]);
        cost += hinge(p, p->load[m] + load[m]) - hinge(p, p->load[m]);
        if (cost < lowest) {
            lowest = cost;
            there = m;
        }
    }
    *gain = -lowest;
    return there;
}

static void recount(struct partition *p, int64_t f, int sign)
{
    const int32_t *count = p->counts + f * p->machines;
    double each = sign * share(p->degree[f]);
    for (int64_t m = 0; m < p->machines; m++) {
        if (count[m] == 0) continue;
        p->load[m] += each;
        if (p->degree[f] == 1) p->alone[m] += sign;
    }
}

static void put(struct partition *p, int64_t sample, int64_t there)
{
    int64_t here = p->places[sample];
    for (int64_t i = p->starts[sample]; i < p->starts[sample + 1]; i++) {
        int64_t f = p->features[i];
        int32_t *count = p->counts + f * p->machines;
        recount(p, f, -1);
        p->degree[f] -= --count[here] == 0;
        p->degree[f] += count[there]++ == 0;
        recount(p, f, 1);
    }
    p->sizes[here]--;
    p->sizes[there]++;
    p->places[sample] = there;
}

// Moves each sample of an order to where it costs least, if anything is gained by it; returns what is.
double weir_improve(struct partition *p, const int64_t *order, int64_t count)
{
    double gained = 0;
    for (int64_t i = 0; i < count; i++) {
        double gain;
        int64_t there = best_place(p, order[i], &gain);
        if (gain > 1e-9) {
            put(p, order[i], there);
            gained += gain;
        }
    }
    return gained;
}

// Places samples one by one where most of their features are known, in an order (greedy.py).
void weir_greedy(int64_t machines, const int64_t *starts, const int64_t *features, const int64_t *order,
                 int64_t count, int64_t *room, uint8_t *known, int64_t *places)
{
    for (int64_t i = 0; i < count; i++) {
        int64_t sample = order[i], shared[MOST_MACHINES], most_room = 0, best = 0;
        memset(shared, 0, sizeof shared);
        for (int64_t j = starts[sample]; j < starts[sample + 1]; j++) {
            for (int64_t m = 0; m < machines; m++) shared[m] += known[features[j] * machines + m];
        }
        for (int64_t m = 0; m < machines; m++) {
            if (room[m] > most_room) most_room = room[m];
        }
        double highest = -2;
        for (int64_t m = 0; m < machines; m++) {
            double score =
                room[m] > 0 ? (double)shared[m] + (double)room[m] / (1.0 + (double)most_room) : -1.0;
            if (score > highest) {
                highest = score;
                best = m;
            }
        }
        places[sample] = best;
        room[best]--;
        for (int64_t j = starts[sample]; j < starts[sample + 1]; j++)
            known[features[j] * machines + best] = 1;
    }
}
