/* Attention over the paged cache: no gather into a copy, no repeated heads, no mask tensor.
 *
 * Keys and values are read where they lie, in tiles of TOKENS with an online softmax (Milakov and Gimelshein, 2018), so nothing grows with
 * the context. Tiles begin at position 0 and sums are in float in the order of the positions, so a query's result does not depend on the
 * batch, on how its prompt was cut into chunks, or on the number of threads. While one tile is computed the next is fetched, a
 * little with every token: blocks lie anywhere, so the hardware cannot guess them, and a burst would stall for want of miss buffers.
 */
#ifndef ATTENTION_H
#define ATTENTION_H

#include <math.h>

#include "vector.h"

#define TOKENS 32 /* a multiple of LANES */
#define GROUP 4   /* queries that share a pass over the values */
#define LINE (64 / (int)sizeof(element))

/* The shape of the problem: caches [blocks, block_size, kv_heads, size], `group` query heads to a KV head, `size` a multiple of LANES. */
typedef struct {
    long kv_heads, group, size, block_size;
    const element *k_cache, *v_cache;
} shape;

/* One query head of one row, and what its softmax knows: the largest score, the sum of weights relative to it, the weighted values. */
typedef struct {
    const element *query;
    float highest, weight;
    float *values;
} state;

/* q . k, still spread over the lanes. */
INLINE f32x16 product(const long size, const element *q, const element *k)
{
#if defined ELEMENT_BF16 && defined __AVX512BF16__
    __m512 dots = _mm512_setzero_ps();
    long i = 0;
    for (; i + 2 * LANES <= size; i += 2 * LANES)
        dots = _mm512_dpbf16_ps(dots, (__m512bh)_mm512_loadu_si512(q + i), (__m512bh)_mm512_loadu_si512(k + i));
    if (i < size)
        dots = _mm512_dpbf16_ps(dots, (__m512bh)_mm512_maskz_loadu_epi16(0xffff, q + i),
                                (__m512bh)_mm512_maskz_loadu_epi16(0xffff, k + i));
    return (f32x16)dots;
#else
    f32x16 dots = splat(0);
    for (long i = 0; i < size; i += LANES) dots += load(q + i) * load(k + i);
    return dots;
#endif
}

/* scores[t] = scale * q . k at offsets[t], for `padded` tokens, a multiple of LANES; fetches the keys at `next` unless it is NULL. */
INLINE void score(const long size, const element *q, const element *keys, const long *offsets, const long *next, int padded,
                  float scale, float *scores)
{
    for (int t = 0; t < padded; t += LANES) {
        f32x16 parts[LANES];
        for (int j = 0; j < LANES; j++) {
            parts[j] = product(size, q, keys + offsets[t + j]);
            if (next)
                for (long i = 0; i < size; i += LINE) __builtin_prefetch(keys + next[t + j] + i, 0, 2);
        }
        store_f32(scores + t, sums(parts) * scale);
    }
}

/* Scores to weights relative to the largest score so far, of the first `visible` tokens; what was summed before is scaled to it. */
static void weigh(state *s, float *scores, int visible, int padded, long size)
{
    for (int t = visible; t < padded; t++) scores[t] = -INFINITY;
    f32x16 tops = splat(s->highest);
    for (int t = 0; t < padded; t += LANES) {
        f32x16 x = load_f32(scores + t);
        tops = choose(less(tops, x), x, tops);
    }
    float top = largest(tops);
    float keep = top == s->highest ? 1.0f : expf(s->highest - top);
    f32x16 total = splat(0);
    for (int t = 0; t < padded; t += LANES) {
        f32x16 x = load_f32(scores + t);
        f32x16 p = choose(less(x, splat(-3e38f)), splat(0), exponential(x - top));
        store_f32(scores + t, p);
        total += p;
    }
    s->weight = s->weight * keep + sum(total);
    s->highest = top;
    if (keep != 1.0f)
        for (long i = 0; i < size; i += LANES) store_f32(s->values + i, load_f32(s->values + i) * keep);
}

/* Adds weights[n][t] * v at offsets[t] for `count` queries, `vectors` vectors from element `part` on; fetches the values at `next`. */
INLINE void gather_part(const int count, const int vectors, long part, state *s, const element *values, const long *offsets,
                        const long *next, float (*weights)[TOKENS], int tokens)
{
    f32x16 totals[GROUP][4];
    for (int n = 0; n < count; n++)
        for (int j = 0; j < vectors; j++) totals[n][j] = load_f32(s[n].values + part + j * LANES);
    for (int t = 0; t < tokens; t++) {
        for (int i = 0; i < vectors * LANES; i += LINE) __builtin_prefetch(values + next[t] + part + i, 0, 2);
        for (int j = 0; j < vectors; j++) {
            f32x16 v = load(values + offsets[t] + part + j * LANES);
            for (int n = 0; n < count; n++) totals[n][j] += v * weights[n][t];
        }
    }
    for (int n = 0; n < count; n++)
        for (int j = 0; j < vectors; j++) store_f32(s[n].values + part + j * LANES, totals[n][j]);
}

INLINE void gather(const int count, long size, state *s, const element *values, const long *offsets, const long *next,
                   float (*weights)[TOKENS], int tokens)
{
    long part = 0;
    for (; part + 4 * LANES <= size; part += 4 * LANES) gather_part(count, 4, part, s, values, offsets, next, weights, tokens);
    for (; part < size; part += LANES) gather_part(count, 1, part, s, values, offsets, next, weights, tokens);
}

/* One tile of one KV head: query n sees the first visible[n] of its `tokens` tokens. `next` is where the next tile lies. */
static void attend(const shape *c, long head_offset, const long *offsets, const long *next, int tokens, const int *visible, state *s,
                   long queries)
{
    const element *keys = c->k_cache + head_offset, *values = c->v_cache + head_offset;
    float weights[GROUP][TOKENS];
    const float scale = 1.0f / sqrtf((float)c->size);
    int padded = (tokens + LANES - 1) / LANES * LANES;
    for (long first = 0; first < queries; first += GROUP, s += GROUP, visible += GROUP) {
        int count = queries - first < GROUP ? (int)(queries - first) : GROUP;
        for (int n = 0; n < count; n++) {
            const long *fetch = first + n ? NULL : next;
            if (c->size == 64) score(64, s[n].query, keys, offsets, fetch, padded, scale, weights[n]);
            else if (c->size == 128) score(128, s[n].query, keys, offsets, fetch, padded, scale, weights[n]);
            else score(c->size, s[n].query, keys, offsets, fetch, padded, scale, weights[n]);
            weigh(s + n, weights[n], visible[n], padded, c->size);
        }
        const long *fetch = first ? offsets : next;
        switch (count) {
        case 1: gather(1, c->size, s, values, offsets, fetch, weights, tokens); break;
        case 2: gather(2, c->size, s, values, offsets, fetch, weights, tokens); break;
        case 3: gather(3, c->size, s, values, offsets, fetch, weights, tokens); break;
        default: gather(4, c->size, s, values, offsets, fetch, weights, tokens);
        }
    }
}

/* Where in the caches the tokens from `start` on lie, as offsets in elements. Returns how many tokens the tile has; offsets beyond repeat
 * the last, and are to be masked. */
static int locate(const shape *c, const int32_t *table, long start, long context, long *offsets)
{
    long width = c->kv_heads * c->size, block = start / c->block_size, within = start % c->block_size;
    int tokens = context - start < TOKENS ? (int)(context - start) : TOKENS;
    for (int t = 0; t < tokens; t++) {
        offsets[t] = (table[block] * c->block_size + within) * width;
        if (++within == c->block_size) {
            within = 0;
            block++;
        }
    }
    for (int t = tokens; t < TOKENS; t++) offsets[t] = offsets[tokens - 1];
    return tokens;
}

/* The last `rows` positions of a sequence of `context` tokens, for the KV heads [first, last). Rows of q are `q_stride` elements apart, rows
 * of out `out_stride`; both begin with query head 0. */
static void attend_rows(const shape *c, const element *q, long q_stride, long rows, const int32_t *table, long context, long first,
                        long last, element *out, long out_stride)
{
    long heads = last - first, per_head = rows * c->group;
    float values[heads * per_head * c->size];
    state states[heads * per_head];
    int visible[per_head];
    long tiles[2][TOKENS] = {{0}};
    memset(values, 0, sizeof values);
    for (long g = 0; g < heads; g++)
        for (long n = 0; n < per_head; n++) {
            long at = g * per_head + n, head = (first + g) * c->group + n % c->group;
            states[at] = (state){q + n / c->group * q_stride + head * c->size, -INFINITY, 0, values + at * c->size};
        }
    int next_tokens = locate(c, table, 0, context, tiles[0]);
    for (long start = 0, turn = 0; start < context; start += TOKENS, turn ^= 1) {
        const long *offsets = tiles[turn], *next = tiles[turn ^ 1];
        int tokens = next_tokens;
        long blind = 0; /* queries that see nothing of this tile: the earlier rows */
        if (start + TOKENS < context) next_tokens = locate(c, table, start + TOKENS, context, tiles[turn ^ 1]);
        for (long n = 0; n < per_head; n++) {
            long sees = context - rows + n / c->group + 1 - start;
            visible[n] = sees < tokens ? (int)sees : tokens;
            blind += sees <= 0;
        }
        for (long g = 0; g < heads; g++)
            attend(c, (first + g) * c->size, offsets, next, tokens, visible + blind, states + g * per_head + blind, per_head - blind);
    }
    for (long g = 0; g < heads; g++)
        for (long n = 0; n < per_head; n++) {
            const state *s = states + g * per_head + n;
            element *to = out + n / c->group * out_stride + ((first + g) * c->group + n % c->group) * c->size;
            for (long i = 0; i < c->size; i += LANES) store(to + i, load_f32(s->values + i) * (1.0f / s->weight));
        }
}

#endif
