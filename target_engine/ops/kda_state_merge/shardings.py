"""How the merge of states is cut: by heads. The axis R of the parts that it merges is never cut: it is a chain."""

from target_engine.parallel.sharding import RECURRENCE, Sharding, at_most, share, words

SHARDINGS = (
    Sharding(
        operator="kda_state_merge",
        name="heads",
        axis="tp",
        cuts=words("heads H", ("s_ext", "m", "s_0", "states")),
        collective="none",
        steps=("output",),
        tolerance=RECURRENCE,
        parts=share("H"),
        refusal=at_most("H", "linear heads"),
    ),
)
