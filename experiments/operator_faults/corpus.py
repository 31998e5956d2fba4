"""All recorded faults, in the order in which they are planted."""

from __future__ import annotations

from experiments.operator_faults.faults import Record
from experiments.operator_faults.lecture import LECTURE
from experiments.operator_faults.reports_parallel import PARALLEL
from experiments.operator_faults.reports_scheduler import LIFETIME, SCHEDULING
from experiments.operator_faults.reports_shapes import KERNELS, SHAPES
from experiments.operator_faults.reports_states import PREFIXES, STATES

RECORDS: tuple[Record, ...] = (
    *PARALLEL,
    *SHAPES,
    *KERNELS,
    *STATES,
    *PREFIXES,
    *LIFETIME,
    *SCHEDULING,
    *LECTURE,
)
