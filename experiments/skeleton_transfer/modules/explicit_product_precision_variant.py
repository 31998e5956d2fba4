"""A scan of matrices: every step multiplies what was carried so far, and mixes it once more."""

from triton import jit
from triton import language as lang


@jit
def carry(steps, first, carried, mixed, count, SIZE: lang.constexpr, WIDTH: lang.constexpr, BLOCK: lang.constexpr):
    """steps [count, SIZE, SIZE], first [SIZE, WIDTH]; carried and mixed [count, SIZE, WIDTH]; grid (WIDTH / BLOCK,)."""
    row = lang.arange(0, SIZE)
    column = lang.program_id(0) * BLOCK + lang.arange(0, BLOCK)
    place = row[:, None] * WIDTH + column[None, :]
    now = lang.load(first + place)
    for number in range(count):
        step = lang.load(steps + number * SIZE * SIZE + row[:, None] * SIZE + row[None, :])
        now = lang.dot(
            step,
            now,
        )
        lang.store(carried + number * SIZE * WIDTH + place, now)
        again = lang.dot(lang.trans(step), now, input_precision="tf32")
        exact = lang.dot(step, again, input_precision="ieee")
        lang.store(mixed + number * SIZE * WIDTH + place, exact)
