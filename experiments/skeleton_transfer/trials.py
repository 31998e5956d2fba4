"""What is tried: for each code skeleton a variant, a module out of an installed library, and a counterexample.

The variants and counterexamples were written for this experiment; the modules out of transformers (of Triton kernels:
flash-linear-attention) are the installed ones, whole files. `limit` bounds the largest difference to the original
relative to the largest value: what float32 rounding in another order may cost, and nothing where tokens come out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from feedback.target import Case, OperatorInfo, Tensor, Tolerance

HERE = Path(__file__).parent
MODULES, CHECKS = HERE / "modules", HERE / "checks"

Shape = tuple[Any, ...]

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
        if self.operators:
            return f"unit/{OPERATOR}/plain.py"
        return f"{self.source.rpartition('.')[2]}.py" if self.kind == "library" else "unit/plain.py"

    def files(self, text: str) -> dict[str, str]:
        """All that the transformation sees: the module, and the packages that it stands in."""
        folders = [str(folder) for folder in PurePosixPath(self.path).parents if folder.name]
        return {**{f"{folder}/__init__.py": "" for folder in folders}, self.path: text}


#: What the one operator of a trial is called, where the skeleton transforms operators.
OPERATOR = "look_up"


def operator(role: str, outputs: Sequence[Shape], inputs: Sequence[Shape], dims: Sequence[Mapping[str, int]] = ()):
    """The declaration of an operator. A shape is (name, axes, type), then its kind if not `runtime`."""
    listed = [(*shape, "runtime")[:4] for shape in inputs] + [(*shape, "output") for shape in outputs]
    return OperatorInfo(
        name=OPERATOR,
        role=role,
        doc="",
        tensors=tuple(Tensor(name=n, shape=axes, dtype=dtype, kind=kind) for n, axes, dtype, kind in listed),  # type: ignore[arg-type]
        cases=tuple(Case(name=str(number), dims=dict(case)) for number, case in enumerate(dims or ({"n": 1},))),
        tolerance={"float32": Tolerance(atol=1e-5, rtol=1e-5, reason="rounding in another order")},
        implementations=("plain",),
        selected="plain",
        files={"plain": f"unit/{OPERATOR}/plain.py"},
    )


CACHES = (
    ("page_keys", ("all", "lines", "banks", "width"), "compute"),
    ("page_values", ("all", "lines", "banks", "width"), "compute"),
)
QUESTION, ANSWER = (
    ("question", ("n", "readers", "width"), "compute"),
    ("answer", ("n", "readers", "width"), "compute"),
)
NEW, ANSWERS = (
    ("question", ("new", "readers", "width"), "compute"),
    ("answer", ("new", "readers", "width"), "compute"),
)
WRITTEN, TABLES, BEGINS = ("written", ("n",), "int32"), ("pages", ("n", "m"), "int32"), ("begins", ("n+1",), "int32")
SIZES = ({"readers": 6, "banks": 2, "lines": 8}, {"readers": 9, "banks": 3, "lines": 16})
#: Keys that lie by columns, values that lie by lines.
CROSSED = ("page_keys", ("all", "banks", "width", "lines"), "compute"), CACHES[1]

DECODE, PREFILL, ROWS = "native_paged_decode_attention", "native_paged_prefill_attention", "native_row_kernels"
DECODE_ROLE, PREFILL_ROLE = "paged_decode_attention", "paged_prefill_attention"
EAGER = "transformers.integrations.eager_paged"


def _three(
    skeleton: str, library: str, reason: str, limit: float = ROUNDING, library_limit: float | None = None
) -> tuple[Trial, ...]:
    return (
        Trial(skeleton, "variant", f"{skeleton}_variant.py", limit),
        Trial(skeleton, "library", library, limit if library_limit is None else library_limit),
        Trial(skeleton, "counterexample", f"{skeleton}_counterexample.py", reason=reason),
    )


def _native(skeleton: str, library: str, operators: Sequence[OperatorInfo], reason: str) -> tuple[Trial, ...]:
    """The three of a skeleton that makes a native form of an operator: of the variant, out of transformers behind a
    class of ours, and of the counterexample.
    """
    variant, from_library, counter = ((each,) for each in operators)
    return (
        Trial(skeleton, "variant", f"{skeleton}_variant.py", operators=variant),
        Trial(skeleton, "library", library, tail=f"{skeleton}_library.txt", operators=from_library),
        Trial(skeleton, "counterexample", f"{skeleton}_counterexample.py", reason=reason, operators=counter),
    )


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
    *_three(
        "explicit_product_precision",
        "fla.ops.common.chunk_scaled_dot_kkt",
        "not written as a constant keyword",
        0.0,
    ),
    *_native(
        DECODE,
        EAGER,
        (
            operator(DECODE_ROLE, [ANSWER], [WRITTEN, TABLES, QUESTION, *CACHES], SIZES),
            operator(DECODE_ROLE, [ANSWER], [QUESTION, *CACHES, TABLES, WRITTEN], SIZES),
            operator(DECODE_ROLE, [ANSWER], [WRITTEN, TABLES, QUESTION, (*CACHES[0], "inout"), CACHES[1]], SIZES),
        ),
        "writes into its arguments",
    ),
    *_native(
        PREFILL,
        EAGER,
        (
            operator(PREFILL_ROLE, [ANSWERS], [*CACHES, BEGINS, WRITTEN, TABLES, NEW], SIZES),
            operator(PREFILL_ROLE, [ANSWERS], [NEW, *CACHES, TABLES, BEGINS, WRITTEN], SIZES),
            operator(PREFILL_ROLE, [ANSWERS], [*CROSSED, BEGINS, WRITTEN, TABLES, NEW], SIZES),
        ),
        "keys and values have different layouts",
    ),
    *_native(
        ROWS,
        "transformers.models.stablelm.modeling_stablelm",
        (
            operator(
                "rms_norm",
                [("levelled", ("n", "k"), "compute")],
                [("frames", ("n", "k"), "compute"), ("loudness", ("k",), "compute", "constant")],
            ),
            operator(
                "rotary_embedding",
                [("turned_queries", ("n", "h", "d"), "compute"), ("turned_keys", ("n", "g", "d"), "compute")],
                [
                    ("queries", ("n", "h", "d"), "compute"),
                    ("keys", ("n", "g", "d"), "compute"),
                    ("cosines", ("n", "d"), "compute"),
                    ("sines", ("n", "d"), "compute"),
                ],
            ),
            operator(
                "rms_norm",
                [("levelled", ("n", "k"), "compute")],
                [("frames", ("n", "k"), "compute"), ("gain", ("k",), "compute", "constant")],
            ),
        ),
        "adds something to its weight",
    ),
)
