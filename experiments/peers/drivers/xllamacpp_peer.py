"""xllamacpp: llama.cpp's server in process, continuous batching over the GGUF file."""

from __future__ import annotations

import json
import threading
from typing import Any

import xllamacpp
from wire import Generate, serve


def start(setup: dict[str, Any]) -> tuple[Generate, str]:
    params = xllamacpp.CommonParams()
    params.model.path = setup["gguf"]
    params.n_parallel = setup["max_batch"]
    params.n_ctx = setup["max_batch"] * setup["max_model_len"]
    params.n_batch, params.n_ubatch = 2048, 512
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = setup["threads"]
    params.cont_batching = params.cache_prompt = params.kv_unified = True
    # Its AMX buffer types die on some virtual machines; the setup can switch the extra buffer types off.
    params.no_extra_bufts = setup.get("no_extra_bufts", False)
    server = xllamacpp.Server(params)

    def complete(prompt: str, max_tokens: int, answers: dict[int, Any], index: int) -> None:
        body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "cache_prompt": True}
        server.handle_completions(body, lambda answer: answers.__setitem__(index, answer))

    def generate(prompts: list[str], max_tokens: list[int]) -> int:
        answers: dict[int, Any] = {}
        pairs = enumerate(zip(prompts, max_tokens, strict=True))
        threads = [threading.Thread(target=complete, args=(p, n, answers, i)) for i, (p, n) in pairs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        bodies = [json.loads(a) if isinstance(a, str) else a for a in answers.values()]
        return sum(body["usage"]["completion_tokens"] for body in bodies)

    return generate, f"xllamacpp, Q4_1 weights of the GGUF, {setup['max_batch']} slots; {xllamacpp.get_system_info()}"


if __name__ == "__main__":
    serve(start)
