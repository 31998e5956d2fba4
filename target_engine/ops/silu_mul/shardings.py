"""How the gated activation is cut: by columns behind gate and up projections that are, or by tokens."""

from target_engine.parallel.sharding import ALONE, Sharding, at_most, rows, share, words

SHARDINGS = (
    Sharding(
        operator="silu_mul",
        name="columns",
        axis="tp",
        cuts=words("columns M", ("gate", "up", "y")),
        collective="none",
        steps=("output",),
        tolerance=ALONE,
        parts=share("M"),
        refusal=at_most("M", "columns"),
    ),
    rows("silu_mul", ("gate", "up", "y"), ALONE),
)
