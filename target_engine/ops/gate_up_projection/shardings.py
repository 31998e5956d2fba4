"""How the gate and up projections are cut: by output columns, both alike, so that a gate meets its up; or by tokens."""

from target_engine.ops.specification import MATMUL_TOLERANCE
from target_engine.parallel.sharding import Sharding, at_most, rows, share

SHARDINGS = (
    Sharding(
        operator="gate_up_projection",
        name="columns",
        axis="tp",
        cuts={
            "w_gate": "rows M (output columns)",
            "w_up": "rows M (output columns)",
            "x": "replicated",
            "gate": "columns M",
            "up": "columns M",
        },
        collective="none",
        steps=("output",),
        tolerance=MATMUL_TOLERANCE,
        parts=share("M"),
        refusal=at_most("M", "columns"),
    ),
    rows("gate_up_projection", ("x", "gate", "up"), MATMUL_TOLERANCE, replicated=("w_gate", "w_up")),
)
