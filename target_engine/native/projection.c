/* y = x W^T for few rows of x: the weight is streamed once, in the order in which it is read, while the rows stay in the cache.
 *
 * The weight [outputs, inputs] is packed into panels of 16 outputs: [panel][input / PAIR][16][PAIR], so that 64 bytes hold the 16 outputs'
 * weights of one input (float) or of two neighbouring inputs (bfloat16, the operand of AVX-512's dot product of pairs). Both axes are
 * padded with zeros. Sums are in float, in the order of the inputs, whatever the number of rows or threads.
 */
#include "vector.h"

#ifdef ELEMENT_BF16
#define PAIR 2
#else
#define PAIR 1
#endif

/* Bytes from the weight being read to the one being fetched: the hardware's own prefetch stops at every page. */
#define AHEAD 8192

/* `width` <= 16 sums go to one row of y, as float when `wide`. */
INLINE void put(void *y, long at, f32x16 sums, int width, int wide)
{
    float *to_float = (float *)y + at;
    element *to = (element *)y + at;
    if (width == LANES && wide) store_f32(to_float, sums);
    else if (width == LANES) store(to, sums);
    else
        for (int j = 0; j < width; j++) {
            if (wide) to_float[j] = sums[j];
            else to[j] = narrow(sums[j]);
        }
}

/* TILE: rows that share one pass over a panel, as many as there are registers to sum in. */
#ifdef __AVX512F__
#define TILE 16
typedef element input;

/* PAIR inputs of one row, or the only one left of the last pair. */
INLINE uint32_t inputs_at(const element *x)
{
    uint32_t bits;
    memcpy(&bits, x, sizeof bits);
    return bits;
}
INLINE uint32_t last_input(const element *x)
{
    uint32_t bits = 0;
    memcpy(&bits, x, sizeof *x);
    return bits;
}

INLINE f32x16 multiply_add(f32x16 sum, const element *weights, uint32_t x)
{
#if defined ELEMENT_BF16 && defined __AVX512BF16__
    __m512i w = _mm512_loadu_si512(weights);
    return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)x), (__m512bh)w);
#elif defined ELEMENT_BF16
    u32x16 w;
    memcpy(&w, weights, sizeof w);
    sum += (f32x16)(w << 16) * from_bits(x << 16);
    return sum + (f32x16)(w & 0xffff0000u) * from_bits(x & 0xffff0000u);
#else
    return sum + load_f32(weights) * from_bits(x);
#endif
}

/* `rows` rows against one panel; y gets `width` <= 16 outputs of each. */
INLINE void tile(const int rows, const input *x, long x_stride, long inputs, const element *panel, void *y, long y_stride,
                 int width, int wide)
{
    f32x16 sums[TILE];
    for (int r = 0; r < rows; r++) sums[r] = splat(0);
    long whole = inputs / PAIR * PAIR;
    for (long i = 0; i < whole; i += PAIR) {
        const element *weights = panel + i * LANES;
        __builtin_prefetch((const char *)weights + AHEAD, 0, 2);
        for (int r = 0; r < rows; r++) sums[r] = multiply_add(sums[r], weights, inputs_at(x + r * x_stride + i));
    }
    if (whole < inputs)
        for (int r = 0; r < rows; r++)
            sums[r] = multiply_add(sums[r], panel + whole * LANES, last_input(x + r * x_stride + whole));
    for (int r = 0; r < rows; r++) put(y, r * y_stride, sums[r], width, wide);
}
#else
/* Sixteen lanes are several registers here. Compilers keep a larger vector in memory instead, so the parts are named; and widening a
 * row's bfloat16 values once for every panel would cost as much as multiplying them, so rows come as floats, padded to whole pairs. */
#ifdef __AVX__
#define REGISTER 32
#define TILE 6
#else
#define REGISTER 16
#ifdef __ARM_NEON
#define TILE 6
#else
#define TILE 3
#endif
#endif
#define PARTS (64 / REGISTER)
typedef float input;
typedef float part __attribute__((vector_size(REGISTER)));
typedef uint32_t part_bits __attribute__((vector_size(REGISTER)));

/* Part p of the weights of 16 outputs for input k of a pair. */
INLINE part weights_at(const element *weights, int p, int k)
{
#ifdef ELEMENT_BF16
    part_bits pairs;
    memcpy(&pairs, (const char *)weights + p * REGISTER, sizeof pairs);
    return k ? (part)(pairs & 0xffff0000u) : (part)(pairs << 16);
#else
    part w;
    memcpy(&w, (const char *)weights + p * REGISTER, sizeof w);
    return w;
#endif
}

/* `rows` rows against one panel; y gets `width` <= 16 outputs of each. */
INLINE void tile(const int rows, const input *x, long x_stride, long inputs, const element *panel, void *y, long y_stride,
                 int width, int wide)
{
    part sums[TILE][PARTS];
    for (int r = 0; r < rows; r++)
        for (int p = 0; p < PARTS; p++) sums[r][p] = (part){0};
    for (long i = 0; i < inputs; i += PAIR) {
        const element *weights = panel + i * LANES;
        __builtin_prefetch((const char *)weights + AHEAD, 0, 2);
        for (int k = 0; k < PAIR; k++) {
            part w[PARTS];
            for (int p = 0; p < PARTS; p++) w[p] = weights_at(weights, p, k);
            for (int r = 0; r < rows; r++)
                for (int p = 0; p < PARTS; p++) sums[r][p] += w[p] * x[r * x_stride + i + k];
        }
    }
    for (int r = 0; r < rows; r++) {
        f32x16 whole;
        memcpy(&whole, sums[r], sizeof whole);
        put(y, r * y_stride, whole, width, wide);
    }
}
#endif

/* Whether rows come as floats, padded with a zero to whole pairs, and not as elements. */
int rows_as_float(void) { return sizeof(input) != sizeof(element); }

/* x [rows, inputs] with rows `x_stride` values apart; y [rows, outputs] contiguous, float when `wide` and `element` otherwise. */
void project(long rows, long inputs, long outputs, const input *x, long x_stride, const element *packed, void *y, int wide,
             int threads)
{
    long panels = (outputs + LANES - 1) / LANES, panel_size = (inputs + PAIR - 1) / PAIR * PAIR * LANES;
    size_t y_size = wide ? sizeof(float) : sizeof(element);
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * inputs * outputs > 200000)
    for (long p = 0; p < panels; p++) {
        const element *panel = packed + p * panel_size;
        long left = outputs - p * LANES;
        int width = left < LANES ? (int)left : LANES;
        long passes = (rows + TILE - 1) / TILE;
        for (long first = 0, count; first < rows; first += count, passes--) {
            const input *from = x + first * x_stride;
            void *to = (char *)y + (first * outputs + p * LANES) * y_size;
            count = (rows - first + passes - 1) / passes; /* of equal size: a pass with one row costs nearly as much as a full one */
            switch (count) {
#define ROWS(n) case n: tile(n, from, x_stride, inputs, panel, to, outputs, width, wide); break;
            ROWS(1) ROWS(2) ROWS(3)
#if TILE > 3
            ROWS(4) ROWS(5) ROWS(6)
#endif
#if TILE == 16
            ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14) ROWS(15) ROWS(16)
#endif
            }
        }
    }
}
