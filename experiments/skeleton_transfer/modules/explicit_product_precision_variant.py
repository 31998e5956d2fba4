"""A scan of matrices: every step multiplies what was carried so far, and mixes it once more."""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count"])
def carry(steps, first, carried, mixed, count, SIZE: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """steps [count, SIZE, SIZE], first [SIZE, WIDTH]; carried and mixed [count, SIZE, WIDTH]; grid (WIDTH / BLOCK,)."""
    row = tl.arange(0, SIZE)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    place = row[:, None] * WIDTH + column[None, :]
    now = tl.load(first + place)
    for number in range(count):
        step = tl.load(steps + number * SIZE * SIZE + row[:, None] * SIZE + row[None, :])
        now = tl.dot(
            step,
            now,
        )
        tl.store(carried + number * SIZE * WIDTH + place, now)
        again = tl.dot(tl.trans(step), now, input_precision="tf32")
        exact = tl.dot(step, again, input_precision="ieee")
        tl.store(mixed + number * SIZE * WIDTH + place, exact)
