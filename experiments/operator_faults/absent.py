"""Public faults that this engine has no place for yet, with the reason: they are listed, not counted."""

from __future__ import annotations

ABSENT: tuple[tuple[str, str, str], ...] = (
    ("vllm-project/vllm#44701", "two kinds of salt share a key", "blocks carry no salt: one tenant, no adapters"),
    ("sgl-project/sglang#22811", "a tier is read before it is ready", "there is one tier of memory"),
    ("vllm-project/vllm#41758", "n-gram speculation changes greedy output", "there is no speculation"),
    ("engines.md", "the first draft token is not verified", "there is no speculation"),
    ("vllm-project/vllm#13133", "keys and values in fp8", "caches are in the compute type"),
    ("sgl-project/sglang#20705", "scales that are silently 1.0", "nothing is quantised"),
    ("engines.md", "a sentinel scale becomes infinite", "nothing is quantised"),
    ("vllm-project/vllm#48853", "the prompt leaks into the stream", "there is no server yet"),
    ("ai-dynamo/dynamo#12630", "UTF-8 is dropped between tokens", "there is no server yet; text is not judged here"),
    ("sgl-project/sglang#36475", "a disconnect corrupts a session", "there is no server yet"),
    ("sgl-project/sglang#32983", "the router always picks the same replica", "there is one replica and no router"),
    ("deepseek-ai/DeepEP#142", "a wait that holds the GIL", "a matter of time, not of values: the timeline shows it"),
)
"""(report, what was wrong, why there is no counterpart)."""
