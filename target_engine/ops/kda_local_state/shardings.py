"""How the local state is cut: by heads. It is itself what a rank computes of its tokens under context parallelism."""

from target_engine.parallel.sharding import RECURRENCE, Sharding, at_most, share, words

SHARDINGS = (
    Sharding(
        operator="kda_local_state",
        name="heads",
        axis="tp",
        cuts=words("heads H", ("k", "v", "g", "beta", "s_ext", "m")),
        collective="none",
        steps=("output",),
        tolerance=RECURRENCE,
        parts=share("H"),
        refusal=at_most("H", "linear heads"),
    ),
)
