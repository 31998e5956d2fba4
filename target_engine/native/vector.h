/* Sixteen elements at a time, for whatever vector unit the compiler is told to use.
 *
 * Written with the vector extensions of GCC and Clang: one register with AVX-512, two with AVX2, four with NEON. `element` is the
 * compute type: float, or bfloat16 (the upper half of a float) when ELEMENT_BF16 is defined. Arithmetic is in float throughout.
 */
#ifndef VECTOR_H
#define VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

typedef float f32x16 __attribute__((vector_size(64)));
typedef int32_t i32x16 __attribute__((vector_size(64)));
typedef uint32_t u32x16 __attribute__((vector_size(64)));
typedef uint16_t u16x16 __attribute__((vector_size(32)));

#ifdef ELEMENT_BF16
typedef uint16_t element;
#else
typedef float element;
#endif

INLINE f32x16 splat(float x) { return x - (f32x16){0}; } /* not 0 + x, which is an addition: -0 would change */

INLINE float from_bits(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
INLINE uint32_t to_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }

/* Scalars. Rounding to bfloat16 is to nearest, ties to even; NaN stays NaN. */

INLINE float widen(element x)
{
#ifdef ELEMENT_BF16
    return from_bits((uint32_t)x << 16);
#else
    return x;
#endif
}

INLINE element narrow(float x)
{
#ifdef ELEMENT_BF16
    uint32_t bits = to_bits(x);
    if (x != x) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
#else
    return x;
#endif
}

/* Vectors, from and to memory of any alignment. */

/* All ones in the lanes where v is NaN, and where a < b; NaN is less than nothing.
 *
 * Without AVX-512 a comparison of sixteen lanes is compiled into sixteen comparisons of one, so there it is arithmetic on the bits. */
INLINE i32x16 is_nan(f32x16 v)
{
#ifdef __AVX512F__
    return v != v;
#else
    return (i32x16)(0x7f800000u - ((u32x16)v & 0x7fffffffu)) >> 31;
#endif
}

INLINE i32x16 less(f32x16 a, f32x16 b)
{
#ifdef __AVX512F__
    return a < b;
#else
    return (i32x16)(a - b) >> 31 & ~is_nan(a - b);
#endif
}

INLINE f32x16 load_f32(const float *p) { f32x16 v; memcpy(&v, p, sizeof v); return v; }
INLINE void store_f32(float *p, f32x16 v) { memcpy(p, &v, sizeof v); }

INLINE f32x16 load(const element *p)
{
#if defined ELEMENT_BF16 && defined __AVX512F__
    return (f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined ELEMENT_BF16
    u16x16 half;
    memcpy(&half, p, sizeof half);
    return (f32x16)(__builtin_convertvector(half, u32x16) << 16);
#else
    return load_f32(p);
#endif
}

INLINE void store(element *p, f32x16 v)
{
#ifdef ELEMENT_BF16
    u32x16 bits = (u32x16)v;
    u32x16 rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
    u32x16 nan = (u32x16)is_nan(v);
    u32x16 result = (rounded & ~nan) | ((bits >> 16 | 0x40) & nan);
#ifdef __AVX512F__
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16((__m512i)result));
#else
    u16x16 half = __builtin_convertvector(result, u16x16);
    memcpy(p, &half, sizeof half);
#endif
#else
    store_f32(p, v);
#endif
}

INLINE float sum(f32x16 v)
{
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)v);
#else
    float x[LANES];
    store_f32(x, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] += x[i + width];
    return x[0];
#endif
}

INLINE float largest(f32x16 v)
{
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)v);
#else
    float x[LANES];
    store_f32(x, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) x[i] = x[i + width] > x[i] ? x[i + width] : x[i];
    return x[0];
#endif
}

#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i32x16){__VA_ARGS__})
#endif

/* The sums of sixteen vectors, lane t that of v[t]: each fold halves the lanes per vector and puts two vectors into one. */
INLINE f32x16 sums(const f32x16 v[LANES])
{
    f32x16 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = SHUFFLE(v[2 * i], v[2 * i + 1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
             + SHUFFLE(v[2 * i], v[2 * i + 1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    for (int i = 0; i < 4; i++)
        b[i] = SHUFFLE(a[2 * i], a[2 * i + 1], 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
             + SHUFFLE(a[2 * i], a[2 * i + 1], 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    for (int i = 0; i < 2; i++)
        c[i] = SHUFFLE(b[2 * i], b[2 * i + 1], 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29)
             + SHUFFLE(b[2 * i], b[2 * i + 1], 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    return SHUFFLE(c[0], c[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30)
         + SHUFFLE(c[0], c[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

INLINE f32x16 choose(i32x16 mask, f32x16 yes, f32x16 no)
{
    return (f32x16)((mask & (i32x16)yes) | (~mask & (i32x16)no));
}

/* e^x: 2^(x log2 e) with a polynomial for the fraction, within 2 units in the last place. Below -87.3 it stays at 2^-126, above
 * 88.3 it is infinite; NaN stays NaN. */
INLINE f32x16 exponential(f32x16 x)
{
    const f32x16 shift = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    x = x * 1.44269504f;
    x = choose(less(splat(128.0f), x), splat(128.0f), x);
    x = choose(less(x, splat(-126.0f)), splat(-126.0f), x);
    f32x16 whole = (x + shift) - shift;
    f32x16 f = x - whole;
    f32x16 p = splat(1.5403530e-4f);
    p = p * f + 1.3333558e-3f;
    p = p * f + 9.6181291e-3f;
    p = p * f + 5.5504109e-2f;
    p = p * f + 2.4022651e-1f;
    p = p * f + 6.9314718e-1f;
    p = p * f + 1.0f;
    i32x16 exponent = __builtin_convertvector(whole, i32x16) + 127;
    return p * (f32x16)(exponent << 23);
}

#endif
