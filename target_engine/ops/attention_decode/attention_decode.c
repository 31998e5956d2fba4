/* Attention of one query per sequence over the paged cache: no gather, no repeated heads, no mask.
 *
 * A sequence's keys and values are read once, in tiles of TOKENS with an online softmax (Milakov and Gimelshein, 2018), so nothing grows
 * with the context; while one tile is computed the next is fetched, since blocks lie anywhere and the hardware cannot guess them. Sums
 * are in float and in the order of the positions, whatever the batch or the number of threads.
 */
#include <math.h>

#include "vector.h"

#define TOKENS 32 /* a multiple of LANES; two tiles of keys and values fit in a second-level cache */
#define GROUP 4   /* query heads that share a pass over the values; a larger group takes several */
#define LINE 64   /* bytes */

/* The shape of the problem, and where one sequence stands in it. */
typedef struct {
    long kv_heads, group, size, block_size;
    const element *k_cache, *v_cache;
} shape;

/* What the online softmax knows of one query head: the largest score, the sum of weights relative to it, and the weighted values. */
typedef struct {
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

/* scores[t] = scale * q . keys[t] for `padded` tokens, a multiple of LANES. */
INLINE void score(const long size, const element *q, const element *const *keys, int padded, float scale, float *scores)
{
    for (int t = 0; t < padded; t += LANES) {
        f32x16 parts[LANES];
        for (int j = 0; j < LANES; j++) parts[j] = product(size, q, keys[t + j]);
        store_f32(scores + t, sums(parts) * scale);
    }
}

/* Scores to weights relative to the largest score so far; what was summed before is scaled to it. */
static void weigh(state *s, float *scores, int tokens, int padded, long size)
{
    for (int t = tokens; t < padded; t++) scores[t] = -INFINITY;
    float top = s->highest;
    for (int t = 0; t < tokens; t++) top = scores[t] > top ? scores[t] : top;
    float keep = top == s->highest ? 1.0f : expf(s->highest - top);
    f32x16 total = splat(0);
    for (int t = 0; t < padded; t += LANES) {
        f32x16 x = load_f32(scores + t);
        f32x16 p = choose(x == splat(-INFINITY), splat(0), exponential(x - top));
        store_f32(scores + t, p);
        total += p;
    }
    s->weight = s->weight * keep + sum(total);
    s->highest = top;
    if (keep != 1.0f)
        for (long i = 0; i < size; i += LANES) store_f32(s->values + i, load_f32(s->values + i) * keep);
}

/* Adds weights[h][t] * values[t] of `heads` heads, `vectors` vectors of each from element `part` on. */
INLINE void gather(const int heads, const int vectors, long part, state *s, const element *const *values, float (*weights)[TOKENS],
                   int tokens)
{
    f32x16 totals[GROUP][4];
    for (int h = 0; h < heads; h++)
        for (int j = 0; j < vectors; j++) totals[h][j] = load_f32(s[h].values + part + j * LANES);
    for (int t = 0; t < tokens; t++)
        for (int j = 0; j < vectors; j++) {
            f32x16 v = load(values[t] + part + j * LANES);
            for (int h = 0; h < heads; h++) totals[h][j] += v * weights[h][t];
        }
    for (int h = 0; h < heads; h++)
        for (int j = 0; j < vectors; j++) store_f32(s[h].values + part + j * LANES, totals[h][j]);
}

INLINE void gather_all(const int heads, long size, state *s, const element *const *values, float (*weights)[TOKENS], int tokens)
{
    long part = 0;
    for (; part + 4 * LANES <= size; part += 4 * LANES) gather(heads, 4, part, s, values, weights, tokens);
    for (; part < size; part += LANES) gather(heads, 1, part, s, values, weights, tokens);
}

/* One tile of one KV head for all query heads of its group. */
static void attend(const shape *c, const element *q, const element *const *keys, const element *const *values, int tokens, state *s)
{
    float weights[GROUP][TOKENS];
    const float scale = 1.0f / sqrtf((float)c->size);
    int padded = (tokens + LANES - 1) / LANES * LANES;
    for (long first = 0; first < c->group; first += GROUP) {
        int heads = c->group - first < GROUP ? (int)(c->group - first) : GROUP;
        for (int h = 0; h < heads; h++) {
            const element *query = q + (first + h) * c->size;
            if (c->size == 64) score(64, query, keys, padded, scale, weights[h]);
            else if (c->size == 128) score(128, query, keys, padded, scale, weights[h]);
            else score(c->size, query, keys, padded, scale, weights[h]);
            weigh(s + first + h, weights[h], tokens, padded, c->size);
        }
        switch (heads) {
        case 1: gather_all(1, c->size, s + first, values, weights, tokens); break;
        case 2: gather_all(2, c->size, s + first, values, weights, tokens); break;
        case 3: gather_all(3, c->size, s + first, values, weights, tokens); break;
        default: gather_all(4, c->size, s + first, values, weights, tokens);
        }
    }
}

/* Asks for the keys and values of positions [from, to) that the KV heads [first, last) need. */
static void fetch(const shape *c, const int32_t *table, long from, long to, long first, long last)
{
    long bytes = (last - first) * c->size * (long)sizeof(element);
    for (long position = from; position < to; position++) {
        long slot = table[position / c->block_size] * c->block_size + position % c->block_size;
        long offset = (slot * c->kv_heads + first) * c->size;
        const char *key = (const char *)(c->k_cache + offset), *value = (const char *)(c->v_cache + offset);
        for (long i = 0; i < bytes; i += LINE) {
            __builtin_prefetch(key + i, 0, 2);
            __builtin_prefetch(value + i, 0, 2);
        }
    }
}

/* One sequence's KV heads [first, last): q and out point to the first of their query heads. */
static void sequence(const shape *c, const element *q, const int32_t *table, long context, long first, long last, element *out)
{
    long heads = (last - first) * c->group;
    float sums_of_values[heads * c->size];
    state states[heads];
    memset(sums_of_values, 0, sizeof sums_of_values);
    for (long h = 0; h < heads; h++) states[h] = (state){-INFINITY, 0, sums_of_values + h * c->size};
    fetch(c, table, 0, context < TOKENS ? context : TOKENS, first, last);
    for (long start = 0; start < context; start += TOKENS) {
        long next = start + TOKENS, after = next + TOKENS;
        int tokens = (int)((context < next ? context : next) - start);
        const element *keys[TOKENS], *values[TOKENS];
        if (next < context) fetch(c, table, next, context < after ? context : after, first, last);
        for (long g = first; g < last; g++) {
            for (int t = 0; t < TOKENS; t++) {
                long position = t < tokens ? start + t : start; /* lanes past the end read a real key and are masked */
                long slot = table[position / c->block_size] * c->block_size + position % c->block_size;
                keys[t] = c->k_cache + (slot * c->kv_heads + g) * c->size;
                values[t] = c->v_cache + (slot * c->kv_heads + g) * c->size;
            }
            attend(c, q + (g - first) * c->group * c->size, keys, values, tokens, states + (g - first) * c->group);
        }
    }
    for (long h = 0; h < heads; h++)
        for (long i = 0; i < c->size; i += LANES)
            store(out + h * c->size + i, load_f32(states[h].values + i) * (1.0f / states[h].weight));
}

/* q and out [batch, heads, size], rows of q `q_stride` elements apart; caches [blocks, block_size, kv_heads, size]; tables
 * [batch, table_width]; context_lens at least 1. `size` is a multiple of LANES. */
void attention_decode(long batch, long heads, long kv_heads, long size, const element *q, long q_stride, const element *k_cache,
                      const element *v_cache, long block_size, const int32_t *tables, long table_width, const int32_t *context_lens,
                      element *out, int threads)
{
    const shape c = {kv_heads, heads / kv_heads, size, block_size, k_cache, v_cache};
    /* A whole sequence reads memory in order; few sequences are divided by KV head to have work for every thread. */
    long parts = batch < 2 * threads ? kv_heads : 1;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (long item = 0; item < batch * parts; item++) {
        long b = item / parts, first = item % parts * (kv_heads / parts), last = first + kv_heads / parts;
        long offset = first * c.group * size;
        sequence(&c, q + b * q_stride + offset, tables + b * table_width, context_lens[b], first, last, out + b * heads * size + offset);
    }
}
