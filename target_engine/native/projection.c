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

/* Rows that share one pass over a panel: as many accumulators as the vector registers hold. */
#ifdef __AVX512F__
#define TILE 16
#else
#define TILE 4
#endif

/* Bytes from the weight being read to the one being fetched: the hardware's own prefetch stops at every page. */
#define AHEAD 8192

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

/* `rows` rows against one panel; y gets `width` <= 16 outputs of each, as float when `wide`. */
INLINE void tile(const int rows, const element *x, long x_stride, long inputs, const element *panel, void *y, long y_stride,
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
    for (int r = 0; r < rows; r++) {
        float *to_float = (float *)y + r * y_stride;
        element *to = (element *)y + r * y_stride;
        if (width == LANES && wide) store_f32(to_float, sums[r]);
        else if (width == LANES) store(to, sums[r]);
        else
            for (int j = 0; j < width; j++) {
                if (wide) to_float[j] = sums[r][j];
                else to[j] = narrow(sums[r][j]);
            }
    }
}

/* x [rows, inputs] with rows `x_stride` elements apart; y [rows, outputs] contiguous, float when `wide` and `element` otherwise. */
void project(long rows, long inputs, long outputs, const element *x, long x_stride, const element *packed, void *y, int wide,
             int threads)
{
    long panels = (outputs + LANES - 1) / LANES, panel_size = (inputs + PAIR - 1) / PAIR * PAIR * LANES;
    size_t y_size = wide ? sizeof(float) : sizeof(element);
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * inputs * outputs > 200000)
    for (long p = 0; p < panels; p++) {
        const element *panel = packed + p * panel_size;
        long left = outputs - p * LANES;
        int width = left < LANES ? (int)left : LANES;
        for (long first = 0; first < rows; first += TILE) {
            const element *from = x + first * x_stride;
            void *to = (char *)y + (first * outputs + p * LANES) * y_size;
            switch (rows - first < TILE ? rows - first : TILE) {
#define ROWS(n) case n: tile(n, from, x_stride, inputs, panel, to, outputs, width, wide); break;
            ROWS(1) ROWS(2) ROWS(3) ROWS(4)
#if TILE == 16
            ROWS(5) ROWS(6) ROWS(7) ROWS(8) ROWS(9) ROWS(10) ROWS(11) ROWS(12) ROWS(13) ROWS(14) ROWS(15) ROWS(16)
#endif
            }
        }
    }
}
