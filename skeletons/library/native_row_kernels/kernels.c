/* Operators on the rows of an activation, one pass each. BF16 (1: values are bfloat16) is filled in when compiled;
   arithmetic is float32, and every result is rounded once. Strides are in elements; the last axis is contiguous. */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
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
    uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (value)((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 64u : rounded);
}
#else
typedef float value;
static inline float widen(value x) { return x; }
static inline value narrow(float f) { return f; }
#endif

/* Waking threads costs more than it saves below this many elements. */
#define ALONE 65536

/* out[i] = x[i] / sqrt(mean(x[i]^2) + eps) * weight; out is contiguous. */
void rms_norm(const value *restrict x, const value *restrict weight, value *restrict out, int64_t rows, int64_t width,
              int64_t stride, float eps, int threads) {
    if (rows * width < ALONE) threads = 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) {
        const value *row = x + i * stride;
        float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (int64_t k = 0; k < width; k++) squares += widen(row[k]) * widen(row[k]);
        float scale = 1.0f / sqrtf(squares / (float)width + eps);
#pragma omp simd
        for (int64_t k = 0; k < width; k++) out[i * width + k] = narrow(widen(row[k]) * scale * widen(weight[k]));
    }
}

/* Rotary embedding of the halves of each head: out = x * cos + [-second half, first half] * sin. x [rows, heads, width]
   with strides of rows and heads; cos and sin [rows, width] with one stride; out is contiguous. */
void rotate_halves(const value *restrict x, const value *restrict cosines, const value *restrict sines,
                   value *restrict out, int64_t rows, int64_t heads, int64_t width, int64_t row_stride,
                   int64_t head_stride, int64_t table_stride, int threads) {
    int64_t half = width / 2;
    if (rows * heads * width < ALONE) threads = 1;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < rows; i++) {
        const value *c = cosines + i * table_stride, *s = sines + i * table_stride;
        for (int64_t h = 0; h < heads; h++) {
            const value *from = x + i * row_stride + h * head_stride;
            value *to = out + (i * heads + h) * width;
#pragma omp simd
            for (int64_t d = 0; d < half; d++) {
                float a = widen(from[d]), b = widen(from[d + half]);
                to[d] = narrow(a * widen(c[d]) - b * widen(s[d]));
                to[d + half] = narrow(b * widen(c[d + half]) + a * widen(s[d + half]));
            }
        }
    }
}
