/* SPDX-License-Identifier: Apache-2.0 */
/* A worker's step of compressed updates: one pass before the sum, over gradients and moments, and one behind it.
 * See updates/ for the arithmetic. Sums of two roundings have the same bits on every machine, which the shared
 * point needs. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "blocks.h"
#include "counts.h"

enum { ROW = 256, CHUNK_ROWS = CHUNK / ROW, VECTOR = 16 };

/* A parameter: `size` values, which fill rows from number `row` on. values: its weights, or what is pending of
 * it. gradient: NULL: zeros. */
typedef struct {
    float *values;
    const float *gradient;
    uint64_t size, row;
} part;

static inline uint64_t rows_of(const part *p) { return (p->size + ROW - 1) / ROW; }

/* The values of a part's row, counted from its first. */
static inline uint32_t length_of(const part *p, uint64_t row)
{
    return (uint32_t)block_length(p->size, row * ROW, ROW);
}

/* The part that a row is of, from an earlier one on. */
static inline const part *seek(const part *p, uint64_t row)
{
    while (row >= p->row + rows_of(p)) p++;
    return p;
}

/* The sum over a row of a function of its values: always in this order. */
#define DEFINE_SUM(name, OF)                                                                                 \
    static inline float name(const float *values)                                                            \
    {                                                                                                        \
        float sums[VECTOR] = {0}, total = 0;                                                                 \
        for (uint32_t i = 0; i < ROW; i += VECTOR)                                                           \
            for (uint32_t j = 0; j < VECTOR; j++) sums[j] += OF(values[i + j]);                              \
        for (uint32_t j = 0; j < VECTOR; j++) total += sums[j];                                              \
        return total;                                                                                        \
    }
#define SQUARE(x) ((x) * (x))
DEFINE_SUM(magnitudes, fabsf)
DEFINE_SUM(squares, SQUARE)

/* Sums over a row. norm, energy: of the magnitudes and of the squares of what is pending. moved: of the squares of
 * the step. */
typedef struct {
    float norm, energy, moved;
} sums;

/* For each part, whether its gradient holds NaN or infinity. */
void weir_updates_spoilt(const part *parts, uint64_t count, uint8_t *spoilt)
{
    for (uint64_t i = 0; i < count; i++)
        spoilt[i] = parts[i].gradient && largest_magnitude(parts[i].gradient, parts[i].size) >= INFINITE;
}

/* Rows of the parts, ascending, one after another; zeros fill them up. rows: NULL: all. */
void weir_updates_take(const part *parts, const int64_t *rows, uint64_t count, int gradients, float *out)
{
    const part *p = parts;
    for (uint64_t i = 0; i < count; i++, out += ROW) {
        const uint64_t row = rows ? (uint64_t)rows[i] : i;
        p = seek(p, row);
        const float *from = gradients ? p->gradient : p->values;
        const uint32_t length = from ? length_of(p, row - p->row) : 0;
        if (length) memcpy(out, from + (row - p->row) * ROW, length * sizeof *out);
        memset(out + length, 0, (ROW - length) * sizeof *out);
    }
}

/* The options of Adam of a part. clip: a factor of the gradient. pull: decay within it. first, second: weights of a
 * gradient in both moments. whole, least: a worker's own second moments count so much, in a row that was never
 * sampled, and in others. rate: negative, and its bias corrected. */
typedef struct {
    float stepping, clip, pull, first, second, whole, least, eps, rate;
} adam;

static inline void adam_row(const adam *of, uint32_t length, float correction, const float *restrict gradient,
                            const float *restrict shared, float *restrict first, const float *restrict mean,
                            float *restrict own, float *restrict values, float *restrict steps)
{
    const float least = correction ? of->least : of->whole;
    for (uint32_t i = 0; i < length; i++) {
        const float g = of->clip * gradient[i] + of->pull * shared[i];
        first[i] += of->first * (g - first[i]);
        float square = mean[i] * correction;
        if (own) {
            own[i] += of->second * (g * g - own[i]);
            const float bound = own[i] * least;
            square = square > bound ? square : bound;
        }
        steps[i] = first[i] / (sqrtf(square) + of->eps) * of->rate;
        values[i] = (values[i] - shared[i]) + steps[i];
    }
}

/* A row of a parameter that makes no step. */
static inline void pending_row(uint32_t length, const float *restrict shared, float *restrict values,
                               float *restrict steps)
{
    for (uint32_t i = 0; i < length; i++) values[i] -= shared[i], steps[i] = 0;
}

/* The sums of a row: zeros fill up what is pending, and the step. */
static inline sums sums_of(const float *values, const float *steps, uint32_t length)
{
    if (length == ROW) return (sums){magnitudes(values), squares(values), squares(steps)};
    float whole[ROW] = {0}, all[ROW] = {0};
    memcpy(whole, values, length * sizeof *whole);
    memcpy(all, steps, length * sizeof *all);
    return (sums){magnitudes(whole), squares(whole), squares(all)};
}

static const float ZEROS[ROW];

/* Makes Adam's step of the parts: values become pending. found: the sums of each row. first, mean, own (NULL: none),
 * shared: rows. corrections: of `mean`, of each row; 0: it was never sampled. */
void weir_updates_adam(const part *parts, uint64_t count, const adam *options, const float *shared,
                       float *first, const float *mean, float *own, const float *corrections, sums *found)
{
    for (uint64_t k = 0; k < count; k++) {
        const part *p = parts + k;
        const adam of = options[k];
        for (uint64_t row = 0; row < rows_of(p); row++) {
            const uint64_t at = (p->row + row) * ROW;
            const uint32_t length = length_of(p, row);
            const float *gradient = p->gradient ? p->gradient + row * ROW : ZEROS;
            float *values = p->values + row * ROW, steps[ROW];
            if (!of.stepping)
                pending_row(length, shared + at, values, steps);
            else if (length == ROW && own)
                adam_row(&of, ROW, corrections[p->row + row], gradient, shared + at, first + at, mean + at,
                         own + at, values, steps);
            else
                adam_row(&of, length, corrections[p->row + row], gradient, shared + at, first + at, mean + at,
                         own ? own + at : NULL, values, steps);
            found[p->row + row] = sums_of(values, steps, length);
        }
    }
}

/* The options of SGD of a part. taken, kept: weights of a gradient and of what was, in the momentum. ahead: of the
 * momentum where the step looks ahead (Nesterov), else nesterov is 0. decay: weight decay. */
typedef struct {
    float stepping, clip, taken, kept, nesterov, ahead, rate, decay;
} sgd;

static inline float with_momentum(const sgd *of, float gradient, float *momentum)
{
    *momentum = *momentum * of->kept + gradient * of->taken;
    return of->nesterov ? gradient + of->ahead * *momentum : *momentum;
}

static inline void sgd_row(const sgd *of, uint32_t length, const float *restrict gradient,
                           const float *restrict shared, float *restrict momentum, float *restrict values,
                           float *restrict steps)
{
    for (uint32_t i = 0; i < length; i++) {
        steps[i] = with_momentum(of, of->clip * gradient[i], momentum + i) * -of->rate;
        values[i] = (values[i] - shared[i]) + steps[i];
    }
}

/* Makes the step of SGD, as weir_updates_adam. */
void weir_updates_sgd(const part *parts, uint64_t count, const sgd *options, const float *shared,
                      float *momentum, sums *found)
{
    for (uint64_t k = 0; k < count; k++) {
        const part *p = parts + k;
        const sgd of = options[k];
        for (uint64_t row = 0; row < rows_of(p); row++) {
            const uint64_t at = (p->row + row) * ROW;
            const uint32_t length = length_of(p, row);
            float *values = p->values + row * ROW, steps[ROW];
            if (of.stepping)
                sgd_row(&of, length, p->gradient ? p->gradient + row * ROW : ZEROS, shared + at,
                        momentum + at, values, steps);
            else
                pending_row(length, shared + at, values, steps);
            found[p->row + row] = sums_of(values, steps, length);
        }
    }
}

/* Makes the step of the gradient of weight decay, at the shared point, with a momentum of its own. */
void weir_updates_sgd_decay(const part *parts, uint64_t count, const sgd *options, float *restrict shared,
                            float *restrict momentum)
{
    for (uint64_t k = 0; k < count; k++) {
        const part *p = parts + k;
        const sgd of = options[k];
        if (!of.stepping) continue;
        for (uint64_t i = p->row * ROW; i < p->row * ROW + p->size; i++)
            shared[i] -= with_momentum(&of, shared[i] * of.decay, momentum + i) * of.rate;
    }
}

/* Second moments of the mean gradient: those of some rows take a sample in. weights: of the sample in a row. */
void weir_updates_squares(float *mean, const int64_t *rows, uint64_t count, const float *sample,
                          const float *kept, const float *weights)
{
    for (uint64_t i = 0; i < count; i++, sample += ROW) {
        float *restrict row = mean + (uint64_t)rows[i] * ROW;
        for (uint32_t j = 0; j < ROW; j++) row[j] = row[j] * kept[i] + sample[j] * sample[j] * weights[i];
    }
}

/* 32 bits by chance, another for each number. (A finaliser of 32-bit hashes, "lowbias32".) */
static inline uint32_t scramble(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Rounds values, in units of their row, to one of the two integers beside them, by chance; plus `most` they are counts.
 * Returns the variance that this adds to their sum of squares. seed: of the draws. */
double weir_updates_round(const float *values, uint64_t first, uint64_t rows, const float *units, float most,
                          uint64_t seed, uint8_t *counts)
{
    double noise = 0;
    for (uint64_t row = 0; row < rows; row++) {
        const float *restrict from = values + row * ROW;
        uint8_t *restrict to = counts + row * ROW;
        const uint32_t key =
            scramble((uint32_t)seed ^ scramble((uint32_t)(seed >> 32) + (uint32_t)(first + row)));
        const float unit = units[row] > 0 ? units[row] : 1;
        float parts[ROW];
        uint32_t rounded[ROW];
        for (uint32_t i = 0; i < ROW; i++) {
            float place = from[i] / unit;
            place = place < -most ? -most : place > most ? most : place;
            const float down = floorf(place), above = place - down;
            const float chance = (float)(int32_t)(scramble(key + i) >> 8) * 0x1p-24f;
            rounded[i] = (uint32_t)(int32_t)(down + most) + (chance < above);
            parts[i] = above * (1 - above);
        }
        for (uint32_t i = 0; i < ROW; i++) to[i] = (uint8_t)rounded[i];
        noise += (double)magnitudes(parts) * ((double)unit * unit);
    }
    return noise;
}

/* The mean gradient of this many rows, of the sums of all workers' counts. units: of one of them, of each row. none: the
 * sum that stands for zero. */
void weir_updates_mean(const uint32_t *lanes, uint64_t count, const float *units, float none, uint32_t base,
                       uint32_t digits, float *mean)
{
    uint16_t sums[CHUNK];
    for (uint64_t row = 0; row < count; row++) {
        const uint64_t within = row % CHUNK_ROWS;
        if (!within) {
            unpack_counts(lanes, (uint32_t)block_length(count, row, CHUNK_ROWS) * ROW, base, digits, sums);
            lanes += lanes_of(CHUNK, digits);
        }
        float *restrict to = mean + row * ROW;
        for (uint32_t i = 0; i < ROW; i++) to[i] = ((float)sums[within * ROW + i] - none) * units[row];
    }
}

/* The signs of pending values, of some rows, as counts: 1 for plus. rows: NULL: all. */
void weir_updates_signs(const part *parts, const int64_t *rows, uint64_t count, uint32_t base,
                        uint32_t digits, uint32_t *lanes)
{
    const part *p = parts;
    uint8_t plus[CHUNK];
    for (uint64_t start = 0; start < count; start += CHUNK_ROWS, lanes += lanes_of(CHUNK, digits)) {
        const uint32_t here = (uint32_t)block_length(count, start, CHUNK_ROWS);
        for (uint32_t i = 0; i < here; i++) {
            const uint64_t row = rows ? (uint64_t)rows[start + i] : start + i;
            p = seek(p, row);
            const float *values = p->values + (row - p->row) * ROW;
            const uint32_t length = length_of(p, row - p->row);
            uint8_t *to = plus + i * ROW;
            memset(to + length, 1, ROW - length);
            for (uint32_t j = 0; j < length; j++) to[j] = signbit(values[j]) ? 0 : 1;
        }
        pack_counts(plus, here * ROW, base, digits, lanes);
    }
}

/* Ends a step in a row: the shared point decays and moves by `mean`, of pending values `own` is taken, and they become
 * weights. own: NULL: the row was not in turn. */
static inline void settle_row(uint32_t length, float factor, const float *restrict own,
                              const float *restrict mean, float *restrict shared, float *restrict values)
{
    for (uint32_t i = 0; i < length; i++) {
        float point = shared[i] * factor, pending = values[i];
        if (own) point += mean[i], pending -= own[i];
        shared[i] = point;
        values[i] = point + pending;
    }
}

/* Ends a step: see above. rows: in turn, ascending, NULL: all; own, mean: of these. factors: of each part. */
void weir_updates_settle(const part *parts, uint64_t count, const float *factors, const int64_t *rows,
                         uint64_t turn, const float *own, const float *mean, float *shared)
{
    uint64_t at = 0;
    for (uint64_t k = 0; k < count; k++) {
        const part *p = parts + k;
        for (uint64_t row = 0; row < rows_of(p); row++) {
            const uint64_t number = p->row + row;
            const int here = at < turn && (!rows || (uint64_t)rows[at] == number);
            settle_row(length_of(p, row), factors[k], here ? own + at * ROW : NULL, mean + at * ROW,
                       shared + number * ROW, p->values + row * ROW);
            at += (uint64_t)here;
        }
    }
}

/* The same of signs. scales: of the rows in turn. lanes: sums of all workers' signs. */
void weir_updates_settle_signs(const part *parts, uint64_t count, const float *factors, const int64_t *rows,
                               uint64_t turn, const float *scales, const uint32_t *lanes, uint32_t workers,
                               uint32_t base, uint32_t digits, float *shared)
{
    uint16_t plus[CHUNK];
    uint64_t at = 0;
    for (uint64_t k = 0; k < count; k++) {
        const part *p = parts + k;
        for (uint64_t row = 0; row < rows_of(p); row++) {
            const uint64_t number = p->row + row;
            float *values = p->values + row * ROW, own[ROW], mean[ROW];
            const uint32_t length = length_of(p, row);
            const int here = at < turn && (!rows || (uint64_t)rows[at] == number);
            if (here) {
                if (at % CHUNK_ROWS == 0)
                    unpack_counts(lanes + at / CHUNK_ROWS * lanes_of(CHUNK, digits),
                                  (uint32_t)block_length(turn, at, CHUNK_ROWS) * ROW, base, digits, plus);
                const uint16_t *sums = plus + at % CHUNK_ROWS * ROW;
                const float scale = scales[at++], unit = scale / (float)workers;
                for (uint32_t i = 0; i < length; i++) {
                    own[i] = copysignf(scale, values[i]);
                    mean[i] = (float)(2 * (int32_t)sums[i] - (int32_t)workers) * unit;
                }
            }
            settle_row(length, factors[k], here ? own : NULL, mean, shared + number * ROW, values);
        }
    }
}
