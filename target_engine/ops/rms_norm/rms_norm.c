/* y = weight * x / sqrt(mean(x^2) + eps) a row, in float, rounded once. Rows of x are `x_stride` elements apart; y is contiguous. */
#include <math.h>

#include "vector.h"

void rms_norm(long rows, long columns, const element *x, long x_stride, const element *weight, float eps, element *y, int threads)
{
    long whole = columns / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * columns > 60000)
    for (long r = 0; r < rows; r++) {
        const element *from = x + r * x_stride;
        element *to = y + r * columns;
        f32x16 squares = splat(0);
        for (long i = 0; i < whole; i += LANES) {
            f32x16 v = load(from + i);
            squares += v * v;
        }
        float total = sum(squares);
        for (long i = whole; i < columns; i++) total += widen(from[i]) * widen(from[i]);
        float scale = 1.0f / sqrtf(total / (float)columns + eps);
        for (long i = 0; i < whole; i += LANES) store(to + i, load(from + i) * scale * load(weight + i));
        for (long i = whole; i < columns; i++) to[i] = narrow(widen(from[i]) * scale * widen(weight[i]));
    }
}
