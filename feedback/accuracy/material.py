"""What accuracy is measured on: passages of a bundled text, and prompts of the workload.

Fixed, so that the oracle's side is remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from feedback.load.workload import Workload
from feedback.oracle import Oracle
from feedback.target import Request, Role, Unsupported

#: Tokens scored together: two of the engine's usual prefill chunks would add nothing but memory for their logits.
PASSAGE_TOKENS = 256

#: Prompts are cut to their last tokens, this many.
PROMPT_TOKENS = 96

#: The trusted text, by its file name, wherever the target keeps its workloads.
TEXT_NAME = "nll.txt"


@dataclass(frozen=True)
class Passage:
    """A teacher-forced sequence: `prompt` is given, every token of `output` is scored."""

    name: str
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def passages(oracle: Oracle, longest: int) -> tuple[Passage, ...]:
    """The bundled text in consecutive passages of at most `longest` tokens.

    Raises `Unsupported` when the target has none.
    """
    entry = next((e for e in oracle.entries() if e.role is Role.PROTECTED and Path(e.path).name == TEXT_NAME), None)
    if entry is None:
        raise Unsupported(f"the target brings no protected {TEXT_NAME} to score")
    ids = oracle.tokenize([(oracle.tree.root / entry.path).read_text(encoding="utf-8")])[0]
    return cut(ids, min(PASSAGE_TOKENS, longest))


def cut(ids: Sequence[int], size: int) -> tuple[Passage, ...]:
    """Token ids in consecutive passages of `size`, each scored from its second token on.

    A rest under half a passage is dropped.
    """
    found = []
    for start in range(0, len(ids), size):
        part = tuple(ids[start : start + size])
        if len(part) >= 2 and (len(part) > size // 2 or not found):
            found.append(Passage(f"text {start}-{start + len(part) - 1}", part[:1], part[1:]))
    return tuple(found)


def prompts(oracle: Oracle, workload: Workload, count: int, output_tokens: int, longest: int) -> tuple[Request, ...]:
    """Greedy requests from the ends of `count` different prompts of the workload, fitting into `longest` tokens.

    The ends, since workloads share beginnings: four times the same system prompt would measure one context.
    """
    rows = [workload.rows[int(i)] for i in sorted(np.random.default_rng(0).permutation(len(workload.rows))[:count])]
    texts = [row.prompt for row in rows if row.prompt is not None]
    encoded = iter(oracle.tokenize(texts, workload.chat) if texts else [])
    kept = max(1, min(PROMPT_TOKENS, longest - output_tokens))
    requests = []
    for row in rows:
        ids = next(encoded) if row.prompt_token_ids is None else row.prompt_token_ids
        requests.append(
            Request(id=row.id, prompt_token_ids=tuple(ids)[-kept:], max_tokens=output_tokens, ignore_eos=True)
        )
    return tuple(requests)
