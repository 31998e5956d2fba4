"""openvino-genai: continuous batching over the GGUF file itself (its converter keeps the file's quantised weights)."""

from __future__ import annotations

from typing import Any

import openvino_genai
from wire import Generate, serve


def start(setup: dict[str, Any]) -> tuple[Generate, str]:
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_seqs = setup["max_batch"]
    scheduler.cache_size = 1
    scheduler.enable_prefix_caching = True
    scheduler.max_num_batched_tokens = 2048
    pipeline = openvino_genai.LLMPipeline(
        setup["gguf"], "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=setup["threads"]
    )

    def generate(prompts: list[str], max_tokens: list[int]) -> int:
        # One generation configuration serves a whole call, so requests of equal length go together.
        tokens = 0
        for length in sorted(set(max_tokens)):
            config = openvino_genai.GenerationConfig()
            config.max_new_tokens = length
            config.ignore_eos = True
            config.do_sample = False
            config.apply_chat_template = False
            result = pipeline.generate([p for p, n in zip(prompts, max_tokens, strict=True) if n == length], config)
            tokens += result.perf_metrics.get_num_generated_tokens()
        return tokens

    version = openvino_genai.__version__
    return (
        generate,
        f"openvino-genai {version}, Q4_1 weights of the GGUF, {setup['max_batch']} sequences, prefix caching",
    )


if __name__ == "__main__":
    serve(start)
