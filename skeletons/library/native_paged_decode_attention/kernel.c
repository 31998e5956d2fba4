/* Paged decode attention, one query token per sequence. Filled in when compiled: HEAD_DIM, GROUP (query heads per KV
   head), BLOCK (tokens per block), BF16 (1: values are bfloat16, arithmetic is float32). Each key and value is
   read once, for all query heads of its group. */
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
    ptrdiff_t block_stride, token_stride, head_stride; /* in elements */
    int length, heads, room;                           /* room: scores of one query head */
} sequence;

#define LINE (64 / (int)sizeof(value))

/* Fetch a token of the next block, which lies anywhere in the pool, where the processor does not look by itself. */
static inline void fetch(const value *block, const sequence *s, int token) {
    for (int h = 0; h < s->heads; h++)
        for (int d = 0; d < HEAD_DIM; d += LINE)
            __builtin_prefetch(block + token * s->token_stride + h * s->head_stride + d, 0, 2);
}

static inline const value *block_of(const value *pool, const sequence *s, int start) {
    int last = s->length - 1;
    return pool + s->table[(start < s->length ? start : last) / BLOCK] * s->block_stride;
}

/* scores[h, g][t] = scale * queries[h][g] . key t of head h. */
static void score(const sequence *s, const float *queries, float scale, float *scores) {
    for (int start = 0; start < s->length; start += BLOCK) {
        const value *block = block_of(s->keys, s, start), *next = block_of(s->keys, s, start + BLOCK);
        int tokens = s->length - start < BLOCK ? s->length - start : BLOCK;
        for (int t = 0; t < tokens; t++) {
            fetch(next, s, t);
            for (int h = 0; h < s->heads; h++) {
                const value *key = block + t * s->token_stride + h * s->head_stride;
                float sums[GROUP];
                for (int g = 0; g < GROUP; g++) {
                    const float *query = queries + (h * GROUP + g) * HEAD_DIM;
                    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                    for (int d = 0; d < HEAD_DIM; d++) sum += query[d] * widen(key[d]);
                    sums[g] = sum;
                }
                for (int g = 0; g < GROUP; g++) scores[(h * GROUP + g) * s->room + start + t] = sums[g] * scale;
            }
        }
    }
}

/* Softmax of one row in place, without the division; returns what to divide by. */
static float soften(float *row, int length) {
    float most = -INFINITY, total = 0.0f;
#pragma omp simd reduction(max : most)
    for (int t = 0; t < length; t++) most = row[t] > most ? row[t] : most;
#pragma omp simd reduction(+ : total)
    for (int t = 0; t < length; t++) {
        row[t] = exp_negative(row[t] - most);
        total += row[t];
    }
    return total;
}

/* sums[h][g] = sum over tokens of weights[h, g][t] * value t of head h. */
static void mix(const sequence *s, const float *weights, float *sums) {
    memset(sums, 0, sizeof(float) * (size_t)s->heads * GROUP * HEAD_DIM);
    for (int start = 0; start < s->length; start += BLOCK) {
        const value *block = block_of(s->values, s, start), *next = block_of(s->values, s, start + BLOCK);
        int tokens = s->length - start < BLOCK ? s->length - start : BLOCK;
        for (int t = 0; t < tokens; t++) {
            fetch(next, s, t);
            for (int h = 0; h < s->heads; h++) {
                const value *row = block + t * s->token_stride + h * s->head_stride;
                for (int g = 0; g < GROUP; g++) {
                    float weight = weights[(h * GROUP + g) * s->room + start + t];
                    float *sum = sums + (h * GROUP + g) * HEAD_DIM;
#pragma omp simd
                    for (int d = 0; d < HEAD_DIM; d++) sum[d] += weight * widen(row[d]);
                }
            }
        }
    }
}

/* q, out [batch, heads * GROUP, HEAD_DIM] contiguous; caches with these strides, in elements; tables int32 with
   table_stride between rows; lengths int32 [batch]. Returns 0, or 1 when there is no memory for the scores. */
int paged_decode_attention(const value *q, const value *keys, const value *values, const int32_t *tables,
                           const int32_t *lengths, value *out, int64_t batch, int64_t heads, int64_t table_stride,
                           int64_t block_stride, int64_t token_stride, int64_t head_stride, float scale, int threads) {
    int64_t work = 0;
    int longest = 1, failed = 0;
    for (int64_t b = 0; b < batch; b++) {
        work += lengths[b];
        if (lengths[b] > longest) longest = lengths[b];
    }
    int room = (longest + 15) / 16 * 16;
    if (work * heads * GROUP * HEAD_DIM < 65536) threads = 1; /* waking threads would cost more than they save */
    /* A sequence's heads lie side by side: they are read together, unless that would leave threads without a task. */
    int split = batch >= 2 * threads ? 1 : (int)heads, together = (int)heads / split;
    size_t rows = (size_t)together * GROUP;
#pragma omp parallel num_threads(threads) reduction(| : failed)
    {
        float *scores = aligned_alloc(64, (sizeof(float) * rows * ((size_t)room + 2 * HEAD_DIM) + 63) / 64 * 64);
        float *queries = scores + rows * (size_t)room, *sums = queries + rows * HEAD_DIM;
        if (scores == NULL) failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < batch * split; task++) {
            if (failed) continue;
            int64_t b = task / split, h = task % split * together;
            size_t first = (size_t)(b * heads + h) * GROUP * HEAD_DIM;
            sequence s = {keys + h * head_stride, values + h * head_stride, tables + b * table_stride,
                          block_stride, token_stride, head_stride, lengths[b], together, room};
            for (size_t i = 0; i < rows * HEAD_DIM; i++) queries[i] = widen(q[first + i]);
            score(&s, queries, scale, scores);
            float totals[rows];
            for (size_t r = 0; r < rows; r++) totals[r] = soften(scores + r * (size_t)room, s.length);
            mix(&s, scores, sums);
            for (size_t i = 0; i < rows * HEAD_DIM; i++)
                out[first + i] = narrow(s.length ? sums[i] / totals[i / HEAD_DIM] : 0.0f);
        }
        free(scores);
    }
    return failed;
}
