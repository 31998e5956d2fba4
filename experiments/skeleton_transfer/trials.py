"""What is tried: for each code skeleton a variant, a module out of transformers, and a counterexample.

The variants and counterexamples were written for this experiment; the modules out of transformers are the installed
ones, whole files. `limit` bounds the largest difference to the original relative to the largest value: what float32
rounding in another order may cost, and nothing where tokens come out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from feedback.target import Case, OperatorInfo, Tensor, Tolerance

HERE = Path(__file__).parent
MODULES, CHECKS = HERE / "modules", HERE / "checks"

#: Ten to a hundred roundings of float32, relative to the largest value.
ROUNDING = 2e-5


@dataclass(frozen=True)
class Trial:
    """One skeleton on one module. `source` is a file of `modules/` or the dotted name of an installed module; `tail` a
    file of `modules/` that is put behind its text; `reason` a part of the refusal that a counterexample must get.
    """

    skeleton: str
    kind: str  # variant, library, counterexample
    source: str
    limit: float = ROUNDING
    reason: str = ""
    tail: str = ""
    operators: tuple[OperatorInfo, ...] = ()

    @property
    def title(self) -> str:
        """How the table names the module."""
        return self.source if self.kind == "library" else self.kind

    @property
    def path(self) -> str:
        """The path under which the transformation sees the module's text."""
        return "unit/plain.py" if self.kind != "library" or self.tail else f"{self.source.rpartition('.')[2]}.py"


def paged(tensors: tuple[tuple[str, tuple[str, ...], str], ...], dims: tuple[dict[str, int], ...], written: str = ""):
    """The declaration of an operator that reads paged keys and values; `written` names a cache that it writes to."""
    listed = [
        Tensor(name=name, shape=shape, dtype=dtype, kind="inout" if name == written else "runtime")
        for name, shape, dtype in tensors
    ]
    query = next(tensor for tensor in listed if len(tensor.shape) == 3)
    return OperatorInfo(
        name="look_up",
        role="paged_decode_attention",
        doc="",
        tensors=(*listed, Tensor(name="result", shape=query.shape, dtype="compute", kind="output")),
        cases=tuple(Case(name=str(number), dims=case) for number, case in enumerate(dims)),
        tolerance={"float32": Tolerance(atol=1e-5, rtol=1e-5, reason="rounding in another order")},
        implementations=("plain",),
        selected="plain",
        files={"plain": "unit/plain.py"},
    )


PAGES = (
    ("written", ("n",), "int32"),
    ("pages", ("n", "m"), "int32"),
    ("question", ("n", "readers", "width"), "compute"),
    ("page_keys", ("all", "lines", "banks", "width"), "compute"),
    ("page_values", ("all", "lines", "banks", "width"), "compute"),
)
PAGE_DIMS = ({"readers": 6, "banks": 2, "lines": 8}, {"readers": 9, "banks": 3, "lines": 16})
BLOCKS = (
    ("query", ("b", "h", "d"), "compute"),
    ("key_cache", ("x", "s", "g", "d"), "compute"),
    ("value_cache", ("x", "s", "g", "d"), "compute"),
    ("block_tables", ("b", "t"), "int32"),
    ("lengths", ("b",), "int32"),
)
BLOCK_DIMS = ({"h": 9, "g": 3, "s": 16}, {"h": 4, "g": 4, "s": 15})


def _three(
    skeleton: str, library: str, reason: str, limit: float = ROUNDING, library_limit: float | None = None
) -> tuple[Trial, ...]:
    return (
        Trial(skeleton, "variant", f"{skeleton}_variant.py", limit),
        Trial(skeleton, "library", library, limit if library_limit is None else library_limit),
        Trial(skeleton, "counterexample", f"{skeleton}_counterexample.py", reason=reason),
    )


_NATIVE = "native_paged_decode_attention"

TRIALS: tuple[Trial, ...] = (
    *_three(
        "fuse_parallel_projections",
        "transformers.models.whisper.modeling_whisper",
        "signal may change between the projections",
    ),
    *_three("prepack_constant_weights", "transformers.models.opt.modeling_opt", "self.weight is not constant"),
    *_three("library_kernel_for_rms", "transformers.models.t5.modeling_t5", "not taken over the last axis alone"),
    *_three("hoist_invariant_work", "transformers.models.esm.modeling_esmfold", "counts is changed in place", 0.0),
    *_three("avoid_repeated_kv_expansion", "transformers.models.gemma2.modeling_gemma2", "spread is needed repeated"),
    *_three(
        "preallocate_instead_of_concatenate", "transformers.generation.utils", "recent is bound more than once", 0.0
    ),
    Trial(_NATIVE, "variant", f"{_NATIVE}_variant.py", operators=(paged(PAGES, PAGE_DIMS),)),
    Trial(
        _NATIVE,
        "library",
        "transformers.integrations.eager_paged",
        tail=f"{_NATIVE}_library.txt",
        operators=(paged(BLOCKS, BLOCK_DIMS),),
    ),
    Trial(
        _NATIVE,
        "counterexample",
        f"{_NATIVE}_counterexample.py",
        reason="writes into its arguments",
        operators=(paged(PAGES, PAGE_DIMS, written="page_keys"),),
    ),
)
