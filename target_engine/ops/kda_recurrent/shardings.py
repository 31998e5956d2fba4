"""How a decode step of linear attention is cut: by heads. Context-parallel ranks decode alike, each with all states of
its heads: one state is as large as thousands of tokens' worth of messages.
"""

from target_engine.parallel.sharding import RECURRENCE, Sharding, at_most, share, words

SHARDINGS = (
    Sharding(
        operator="kda_recurrent",
        name="heads",
        axis="tp",
        cuts=words("heads H", ("q", "k", "v", "g", "beta", "state", "out"), replicated=("state_slots",)),
        collective="none",
        steps=("output",),
        tolerance=RECURRENCE,
        parts=share("H"),
        refusal=at_most("H", "linear heads"),
    ),
)
