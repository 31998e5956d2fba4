"""Specification: one token a row, greedy or drawn, decided entirely by the inputs."""

import numpy as np

from target_engine.ops.sampling.reference import distribution
from target_engine.ops.specification import (
    Arrays,
    Case,
    ModelSizes,
    OperatorSpec,
    TensorSpec,
    Tolerance,
    row_microbench,
)


def make_inputs(case: Case, seed: int) -> Arrays:
    """Rows greedy or drawn by the case's distribution; thresholds and uniforms lie midway between two tokens, clear of
    rounding.
    """
    rng = np.random.default_rng(seed)
    rows, vocabulary = case.dims["N"], case.dims["V"]
    logits = (3.0 * rng.standard_normal((rows, vocabulary))).astype(np.float32)
    kind = case.distribution
    temperature = np.zeros(rows, np.float32) if kind == "greedy" else rng.uniform(0.5, 1.5, rows).astype(np.float32)
    if kind == "mixed":
        temperature[::2] = 0.0
    top_k = np.zeros(rows, np.int64)
    if kind in ("top_k", "mixed", "both"):
        top_k = rng.integers(1, min(vocabulary, 50) + 1, rows)
    top_p, uniforms = np.ones(rows, np.float32), np.zeros(rows, np.float32)
    for row in range(rows):
        _, weights = distribution(logits[row].astype(np.float64), max(temperature[row], 1e-3), int(top_k[row]), 1.0)
        if kind in ("top_p", "mixed", "both") and len(weights) > 1:
            top_p[row] = _midway(rng, np.cumsum(weights)[:20])
        kept = distribution(logits[row].astype(np.float64), max(temperature[row], 1e-3), int(top_k[row]), top_p[row])[1]
        uniforms[row] = _midway(rng, np.cumsum(kept)[:20])
    return {"logits": logits, "temperature": temperature, "top_k": top_k, "top_p": top_p, "uniforms": uniforms}


def _midway(rng: np.random.Generator, cumulative: np.ndarray) -> float:
    """The middle of one of the wider intervals of a cumulative distribution."""
    edges = np.concatenate([[0.0], np.minimum(cumulative, 1.0)])
    wide = np.flatnonzero(np.diff(edges) > 1e-4)
    index = int(rng.choice(wide)) if len(wide) else int(np.argmax(np.diff(edges)))
    return float((edges[index] + edges[index + 1]) / 2)


def microbench(sizes: ModelSizes) -> tuple[Case, ...]:
    cases = row_microbench({"V": sizes.vocabulary}, sizes)[:2]
    drawn = Case(
        f"model-drawn-{sizes.max_batch}", {"N": sizes.max_batch, "V": sizes.vocabulary}, "both", ("microbench",)
    )
    return (*(Case(case.name, case.dims, "greedy", case.tags) for case in cases), drawn)


_EXACT = Tolerance(0.0, 0.0, "a token is right or wrong; inputs keep clear of ties and thresholds")

SPEC = OperatorSpec(
    name="sampling",
    role="sampling",
    doc="temperature 0: the first largest logit. Otherwise: keep the top_k largest (0: all), softmax at the "
    "temperature, keep the fewest most likely tokens whose mass reaches top_p, renormalise, and take the first token, "
    "most likely first, whose cumulative mass exceeds the uniform",
    tensors=(
        TensorSpec("logits", ("N", "V"), "float32", "runtime"),
        TensorSpec("temperature", ("N",), "float32", "runtime"),
        TensorSpec("top_k", ("N",), "int64", "runtime"),
        TensorSpec("top_p", ("N",), "float32", "runtime"),
        TensorSpec("uniforms", ("N",), "float32", "runtime"),
        TensorSpec("token_ids", ("N",), "int64", "output"),
    ),
    cases=(
        Case("greedy-4", {"N": 4, "V": 300}, "greedy"),
        Case("greedy-17", {"N": 17, "V": 301}, "greedy", ("odd",)),
        Case("drawn-16", {"N": 16, "V": 300}, "plain"),
        Case("top-k", {"N": 5, "V": 300}, "top_k"),
        Case("top-p", {"N": 5, "V": 300}, "top_p"),
        Case("top-k-and-p", {"N": 5, "V": 300}, "both"),
        Case("mixed-with-greedy", {"N": 9, "V": 300}, "mixed", ("constructed",)),
        Case("one-row", {"N": 1, "V": 37}, "both", ("odd",)),
        Case("three-rows", {"N": 3, "V": 37}, "mixed", ("odd",)),
        Case("two-tokens", {"N": 4, "V": 2}, "plain", ("constructed",)),
        Case("one-token", {"N": 2, "V": 1}, "plain", ("constructed",)),
    ),
    tolerance={"float32": _EXACT, "bfloat16": _EXACT},
    make_inputs=make_inputs,
    microbench=microbench,
    unsharded="it reads whole rows of logits, which are gathered before it, and runs on the rank that schedules; the "
    "others learn its tokens with the next step",
)
