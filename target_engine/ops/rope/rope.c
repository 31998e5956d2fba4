/* out = x * cos + [-b, a] * sin for x = [a, b], in float, rounded once. A row of x holds `heads` heads of `size` elements side by side, rows
 * are `x_stride` elements apart; cos and sin [rows, size] and out [rows, heads, size] are contiguous. */
#include "vector.h"

static void rotate(long heads, long size, const element *x, const element *cosines, const element *sines, element *out)
{
    long half = size / 2, whole = half / LANES * LANES;
    for (long h = 0; h < heads; h++, x += size, out += size) {
        for (long i = 0; i < whole; i += LANES) {
            f32x16 a = load(x + i), b = load(x + half + i);
            store(out + i, a * load(cosines + i) - b * load(sines + i));
            store(out + half + i, b * load(cosines + half + i) + a * load(sines + half + i));
        }
        for (long i = whole; i < half; i++) {
            float a = widen(x[i]), b = widen(x[half + i]);
            out[i] = narrow(a * widen(cosines[i]) - b * widen(sines[i]));
            out[half + i] = narrow(b * widen(cosines[half + i]) + a * widen(sines[half + i]));
        }
    }
}

void rope(long rows, long heads, long kv_heads, long size, const element *q, long q_stride, const element *k, long k_stride,
          const element *cosines, const element *sines, element *q_out, element *k_out, int threads)
{
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * (heads + kv_heads) * size > 60000)
    for (long r = 0; r < rows; r++) {
        rotate(heads, size, q + r * q_stride, cosines + r * size, sines + r * size, q_out + r * heads * size);
        rotate(kv_heads, size, k + r * k_stride, cosines + r * size, sines + r * size, k_out + r * kv_heads * size);
    }
}
