"""How decay and write strength are cut: by heads, or by tokens."""

from target_engine.parallel.sharding import ALONE, Sharding, at_most, rows, share, words

SHARDINGS = (
    Sharding(
        operator="kda_gate",
        name="heads",
        axis="tp",
        cuts=words("heads H", ("a_log", "dt_bias", "raw", "raw_beta", "g", "beta")),
        collective="none",
        steps=("output",),
        tolerance=ALONE,
        parts=share("H"),
        refusal=at_most("H", "linear heads"),
    ),
    rows("kda_gate", ("raw", "raw_beta", "g", "beta"), ALONE, replicated=("a_log", "dt_bias")),
)
