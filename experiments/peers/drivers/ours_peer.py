"""The engine judged here, under one of its shipped launch profiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wire import Generate, serve

import target_engine
from target_engine.engine import Engine
from target_engine.launch import LaunchConfig
from target_engine.scheduling.request import SamplingParams


def start(setup: dict[str, Any]) -> tuple[Generate, str]:
    profile = Path(target_engine.__file__).parent / "profiles" / f"{setup['profile']}.toml"
    config = LaunchConfig.load(profile).model_copy(update={"threads": setup["threads"]})
    engine = Engine(config)

    def generate(prompts: list[str], max_tokens: list[int]) -> int:
        for index, (prompt, count) in enumerate(zip(prompts, max_tokens, strict=True)):
            sampling = SamplingParams(max_tokens=count, ignore_eos=True)
            engine.add_request(str(index), engine.tokenizer.encode(prompt), sampling)
        tokens = 0
        while engine.has_work:
            tokens += len(engine.step())
        return tokens

    reuse = ", prefix caching" if config.prefix_cache else ""
    return generate, f"profile {setup['profile']}, {config.dtype}, {config.max_batch} slots{reuse}"


if __name__ == "__main__":
    serve(start)
