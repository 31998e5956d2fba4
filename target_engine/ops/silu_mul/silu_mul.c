/* y = gate / (1 + e^-gate) * up, in float, rounded once. Rows of gate and up have their own strides in elements; y is contiguous. */
#include <math.h>

#include "vector.h"

INLINE f32x16 activate(f32x16 gate, f32x16 up) { return gate / (exponential(-gate) + 1.0f) * up; }

void silu_mul(long rows, long columns, const element *gate, long gate_stride, const element *up, long up_stride, element *y, int threads)
{
    long whole = columns / LANES * LANES;
#pragma omp parallel for schedule(static) num_threads(threads) if (rows * columns > 30000)
    for (long r = 0; r < rows; r++) {
        const element *g = gate + r * gate_stride, *u = up + r * up_stride;
        element *to = y + r * columns;
        for (long i = 0; i < whole; i += LANES) store(to + i, activate(load(g + i), load(u + i)));
        for (long i = whole; i < columns; i++) to[i] = narrow(widen(g[i]) / (1.0f + expf(-widen(g[i]))) * widen(u[i]));
    }
}
