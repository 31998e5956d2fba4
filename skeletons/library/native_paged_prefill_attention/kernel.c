/* Paged prefill attention: runs of new tokens attend causally to their sequence's cached context. Filled in when
   compiled: HEAD_DIM, GROUP (query heads per KV head), BLOCK (tokens per block), BF16 (1: values are bfloat16, the
   arithmetic is float32). A task is one KV head of SEGMENT new tokens: it goes over the context in chunks of 16 tokens,
   with the softmax kept up to date (Milakov and Gimelshein, 2018), so no scores are stored. */
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

#define CHUNK 16                         /* context tokens at a time: the lanes of a vector */
#define SEGMENT 32                       /* new tokens in a task */
#define ROWS (SEGMENT * GROUP)           /* query rows of a task */
#define PARTS ((HEAD_DIM + 15) / 16)     /* vectors in a head, the last one padded with zeros */
typedef float lanes __attribute__((vector_size(64)));

typedef struct {
    lanes keys[HEAD_DIM];       /* one chunk, transposed: [dimension][token] */
    lanes values[CHUNK][PARTS]; /* the same chunk: [token][dimension] */
    lanes sums[ROWS + 3][PARTS];
    float queries[ROWS + 3][HEAD_DIM];
    float weights[ROWS + 3][CHUNK];
    float most[ROWS + 3], total[ROWS + 3];
} workspace;

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

/* Scores of four query rows against the chunk. */
static inline void scores_of(const workspace *w, int row, lanes scores[4]) {
    const float *a = w->queries[row], *b = w->queries[row + 1], *c = w->queries[row + 2], *d = w->queries[row + 3];
    lanes s0 = {0}, s1 = {0}, s2 = {0}, s3 = {0};
    for (int k = 0; k < HEAD_DIM; k++) {
        lanes key = w->keys[k];
        s0 += a[k] * key;
        s1 += b[k] * key;
        s2 += c[k] * key;
        s3 += d[k] * key;
    }
    scores[0] = s0, scores[1] = s1, scores[2] = s2, scores[3] = s3;
}

/* Takes a row's scores of the chunk into its softmax; `seen` of them count. */
static inline void take(workspace *w, int row, const lanes *scores, int seen) {
    const float *score = (const float *)scores;
    float *weight = w->weights[row], most = w->most[row], total = 0.0f;
    if (seen == CHUNK) {
#pragma omp simd reduction(max : most)
        for (int t = 0; t < CHUNK; t++) most = score[t] > most ? score[t] : most;
    } else {
        for (int t = 0; t < seen; t++) most = score[t] > most ? score[t] : most;
    }
#pragma omp simd reduction(+ : total)
    for (int t = 0; t < CHUNK; t++) {
        float e = exp_negative(score[t] - most);
        weight[t] = t < seen ? e : 0.0f;
        total += weight[t];
    }
    if (most > w->most[row]) { /* what was summed so far had a smaller reference */
        float scale = w->most[row] == -INFINITY ? 0.0f : exp_negative(w->most[row] - most);
        for (int p = 0; p < PARTS; p++) w->sums[row][p] *= scale;
        w->total[row] *= scale;
        w->most[row] = most;
    }
    w->total[row] += total;
}

/* sums += weights * values for four rows and `count` vectors of the head from `part`. */
#define MIX(count)                                                                                            \
    static inline void mix##count(workspace *w, int row, int part) {                                          \
        lanes sum[4][count];                                                                                  \
        for (int r = 0; r < 4; r++)                                                                           \
            for (int p = 0; p < count; p++) sum[r][p] = w->sums[row + r][part + p];                           \
        for (int t = 0; t < CHUNK; t++)                                                                       \
            for (int r = 0; r < 4; r++)                                                                       \
                for (int p = 0; p < count; p++) sum[r][p] += w->weights[row + r][t] * w->values[t][part + p]; \
        for (int r = 0; r < 4; r++)                                                                           \
            for (int p = 0; p < count; p++) w->sums[row + r][part + p] = sum[r][p];                           \
    }
#if PARTS >= 4
MIX(4)
#endif
MIX(1)

/* Brings `tokens` of a chunk of keys and values into the workspace; the rest is zero. */
static void bring(workspace *w, const value *keys, const value *values, const int32_t *table, ptrdiff_t block_stride,
                  ptrdiff_t token_stride, int start, int tokens) {
    memset(w->keys, 0, sizeof w->keys);
    memset(w->values, 0, sizeof w->values);
    for (int t = 0; t < tokens; t++) {
        int position = start + t;
        ptrdiff_t at = table[position / BLOCK] * block_stride + position % BLOCK * token_stride;
        float *row = (float *)w->values[t];
        for (int d = 0; d < HEAD_DIM; d++) ((float *)&w->keys[d])[t] = widen(keys[at + d]);
        for (int d = 0; d < HEAD_DIM; d++) row[d] = widen(values[at + d]);
    }
}

/* q, out [N, heads * GROUP, HEAD_DIM] contiguous; sequence b has the tokens starts[b] .. starts[b + 1] - 1, the last of
   its lengths[b]; caches with these strides, in elements. Returns 0, or 1 when there is no memory to work in. */
int paged_prefill_attention(const value *q, const value *keys, const value *values, const int32_t *tables,
                            const int32_t *starts, const int32_t *lengths, value *out, int64_t batch, int64_t heads,
                            int64_t table_stride, int64_t block_stride, int64_t token_stride, int64_t head_stride,
                            float scale, int threads) {
    int64_t segments = 0;
    int failed = 0;
    for (int64_t b = 0; b < batch; b++) segments += (starts[b + 1] - starts[b] + SEGMENT - 1) / SEGMENT;
#pragma omp parallel num_threads(threads) if (segments * heads > 1) reduction(| : failed)
    {
        workspace *w = aligned_alloc(64, (sizeof(workspace) + 63) / 64 * 64);
        if (w == NULL) failed = 1;
#pragma omp for schedule(dynamic, 1)
        for (int64_t task = 0; task < segments * heads; task++) {
            if (failed) continue;
            int64_t h = task % heads, segment = task / heads, b = 0;
            while (segment >= (starts[b + 1] - starts[b] + SEGMENT - 1) / SEGMENT) {
                segment -= (starts[b + 1] - starts[b] + SEGMENT - 1) / SEGMENT;
                b++;
            }
            int first = starts[b] + (int)segment * SEGMENT; /* new token, in q */
            int count = starts[b + 1] - first < SEGMENT ? starts[b + 1] - first : SEGMENT;
            int position = lengths[b] - (starts[b + 1] - first); /* of that token in its sequence */
            int rows = count * GROUP, padded = (rows + 3) / 4 * 4;
            memset(w->sums, 0, sizeof w->sums);
            memset(w->queries, 0, sizeof w->queries);
            for (int r = 0; r < padded; r++) w->most[r] = -INFINITY, w->total[r] = 0.0f;
            for (int r = 0; r < rows; r++) {
                const value *query = q + (((first + r / GROUP) * heads + h) * GROUP + r % GROUP) * HEAD_DIM;
                for (int d = 0; d < HEAD_DIM; d++) w->queries[r][d] = widen(query[d]) * scale;
            }
            for (int start = 0; start < position + count; start += CHUNK) {
                int tokens = position + count - start < CHUNK ? position + count - start : CHUNK;
                bring(w, keys + h * head_stride, values + h * head_stride, tables + b * table_stride, block_stride,
                      token_stride, start, tokens);
                int from = start > position ? (start - position) * GROUP / 4 * 4 : 0; /* earlier rows see none of it */
                for (int row = from; row < rows; row += 4) {
                    lanes scores[4];
                    scores_of(w, row, scores);
                    for (int r = 0; r < 4; r++) {
                        int visible = position + (row + r) / GROUP + 1 - start;
                        if (row + r >= rows || visible <= 0) {
                            memset(w->weights[row + r], 0, sizeof w->weights[row + r]);
                        } else {
                            take(w, row + r, &scores[r], visible < CHUNK ? visible : CHUNK);
                        }
                    }
                    int part = 0;
#if PARTS >= 4
                    for (; part + 4 <= PARTS; part += 4) mix4(w, row, part);
#endif
                    for (; part < PARTS; part++) mix1(w, row, part);
                }
            }
            for (int r = 0; r < rows; r++) {
                value *to = out + (((first + r / GROUP) * heads + h) * GROUP + r % GROUP) * HEAD_DIM;
                const float *sum = (const float *)w->sums[r];
                for (int d = 0; d < HEAD_DIM; d++) to[d] = narrow(sum[d] / w->total[r]);
            }
        }
        free(w);
    }
    return failed;
}
