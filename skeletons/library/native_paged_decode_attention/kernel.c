/* Paged decode attention, one query token per sequence. Filled in when compiled: HEAD_DIM, GROUP (query heads per KV
   head), BLOCK (tokens per block), BF16 (1: values are bfloat16, arithmetic is float32). A task is one KV head of one
   sequence: it reads that head's keys and values once. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if BF16
typedef uint16_t value;
static inline float widen(value x) {
    uint32_t bits = (uint32_t)x << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static inline value narrow(float f) { /* to nearest, ties to even; NaN stays NaN */
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (value)((bits >> 16) | 64u);
    return (value)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
#else
typedef float value;
static inline float widen(value x) { return x; }
static inline value narrow(float f) { return f; }
#endif

/* exp(x) for x <= 0, about 2 ulp: 2^n times a polynomial in the rest (Cephes). No branches: loops over it vectorise. */
static inline float exp_negative(float x) {
    x = x < -87.0f ? -87.0f : x;
    float n = rintf(x * 1.44269504f);
    float r = x - n * 0.693359375f + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits = ((int32_t)n + 127) << 23;
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return p * scale;
}

typedef struct {
    const value *keys, *values;
    const int32_t *table;
    ptrdiff_t block_stride, token_stride; /* in elements */
    int length;
} sequence;

/* scores[g][t] = scale * queries[g] . key t, for all tokens of one sequence. */
static void score(const sequence *s, float queries[GROUP][HEAD_DIM], float scale, float *scores, int room) {
    for (int start = 0; start < s->length; start += BLOCK) {
        const value *block = s->keys + s->table[start / BLOCK] * s->block_stride;
        int tokens = s->length - start < BLOCK ? s->length - start : BLOCK;
        for (int t = 0; t < tokens; t++) {
            const value *key = block + t * s->token_stride;
            float sums[GROUP];
            for (int g = 0; g < GROUP; g++) {
                float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                for (int d = 0; d < HEAD_DIM; d++) sum += queries[g][d] * widen(key[d]);
                sums[g] = sum;
            }
            for (int g = 0; g < GROUP; g++) scores[g * room + start + t] = sums[g] * scale;
        }
    }
}

/* Softmax of each row in place, without the division; totals[g] is what to divide by. */
static void soften(float *scores, int length, int room, float totals[GROUP]) {
    for (int g = 0; g < GROUP; g++) {
        float *row = scores + g * room, most = -INFINITY, total = 0.0f;
#pragma omp simd reduction(max : most)
        for (int t = 0; t < length; t++) most = row[t] > most ? row[t] : most;
#pragma omp simd reduction(+ : total)
        for (int t = 0; t < length; t++) {
            row[t] = exp_negative(row[t] - most);
            total += row[t];
        }
        totals[g] = total;
    }
}

/* out[g] = sum over tokens of weights[g][t] * value t / totals[g]. */
static void mix(const sequence *s, const float *weights, int room, const float totals[GROUP], value *out) {
    float sums[GROUP][HEAD_DIM];
    memset(sums, 0, sizeof sums);
    for (int start = 0; start < s->length; start += BLOCK) {
        const value *block = s->values + s->table[start / BLOCK] * s->block_stride;
        int tokens = s->length - start < BLOCK ? s->length - start : BLOCK;
        for (int t = 0; t < tokens; t++) {
            const value *row = block + t * s->token_stride;
            for (int g = 0; g < GROUP; g++) {
                float weight = weights[g * room + start + t];
#pragma omp simd
                for (int d = 0; d < HEAD_DIM; d++) sums[g][d] += weight * widen(row[d]);
            }
        }
    }
    for (int g = 0; g < GROUP; g++)
        for (int d = 0; d < HEAD_DIM; d++) out[g * HEAD_DIM + d] = narrow(s->length ? sums[g][d] / totals[g] : 0.0f);
}

/* q, out [batch, heads * GROUP, HEAD_DIM] contiguous; caches with these strides, in elements; tables int32 with
   table_stride between rows; lengths int32 [batch]. Returns 0, or 1 when there is no memory for the scores. */
int paged_decode_attention(const value *q, const value *keys, const value *values, const int32_t *tables,
                           const int32_t *lengths, value *out, int64_t batch, int64_t heads, int64_t table_stride,
                           int64_t block_stride, int64_t token_stride, int64_t head_stride, float scale, int threads) {
    int64_t tasks = batch * heads, work = 0;
    int longest = 1, failed = 0;
    for (int64_t b = 0; b < batch; b++) {
        work += lengths[b];
        if (lengths[b] > longest) longest = lengths[b];
    }
    int room = (longest + 15) / 16 * 16;
    if (work * heads * GROUP * HEAD_DIM < 65536) threads = 1; /* waking threads would cost more than they save */
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *scores = aligned_alloc(64, sizeof(float) * GROUP * (size_t)room);
        if (scores == NULL) failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < tasks; task++) {
            if (failed) continue;
            int64_t b = task / heads, h = task % heads;
            const value *query = q + task * GROUP * HEAD_DIM;
            value *result = out + task * GROUP * HEAD_DIM;
            sequence s = {keys + h * head_stride, values + h * head_stride, tables + b * table_stride,
                          block_stride, token_stride, lengths[b]};
            float queries[GROUP][HEAD_DIM], totals[GROUP];
            for (int i = 0; i < GROUP * HEAD_DIM; i++) queries[i / HEAD_DIM][i % HEAD_DIM] = widen(query[i]);
            score(&s, queries, scale, scores, room);
            soften(scores, s.length, room, totals);
            mix(&s, scores, room, totals, result);
        }
        free(scores);
    }
    return failed;
}
