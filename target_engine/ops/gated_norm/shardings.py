"""How the gated normalisation is cut: by heads, each of which is normalised alone; or by tokens."""

from target_engine.parallel.sharding import ALONE, Sharding, at_most, rows, share, words

SHARDINGS = (
    Sharding(
        operator="gated_norm",
        name="heads",
        axis="tp",
        cuts=words("heads H", ("x", "gate", "out"), replicated=("weight",)),
        collective="none",
        steps=("output",),
        tolerance=ALONE,
        parts=share("H"),
        refusal=at_most("H", "linear heads"),
    ),
    rows("gated_norm", ("x", "gate", "out"), ALONE, replicated=("weight",)),
)
