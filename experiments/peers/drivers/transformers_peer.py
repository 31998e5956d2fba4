"""transformers: one static padded batch (`batched`) or one request after the other (`sequential`)."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer
from wire import Generate, serve


def start(setup: dict[str, Any]) -> tuple[Generate, str]:
    torch.set_num_threads(setup["threads"])
    tokenizer = AutoTokenizer.from_pretrained(setup["model_dir"], padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    model = AutoModelForCausalLM.from_pretrained(setup["model_dir"], dtype=getattr(torch, setup["dtype"])).eval()
    width = setup["max_batch"]

    @torch.inference_mode()
    def generate(prompts: list[str], max_tokens: list[int]) -> int:
        tokens = 0
        for first in range(0, len(prompts), width):
            batch = tokenizer(prompts[first : first + width], return_tensors="pt", padding=True)
            # A static batch runs until its longest member is done; only the tokens that were asked for count.
            wanted = max_tokens[first : first + width]
            longest = max(wanted)
            output = model.generate(
                **batch,
                min_new_tokens=longest,
                max_new_tokens=longest,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
            assert output.shape[1] == batch["input_ids"].shape[1] + longest
            tokens += sum(wanted)
        return tokens

    return generate, f"transformers {transformers.__version__}, {setup['dtype']}, static batch {width}, sdpa"


if __name__ == "__main__":
    serve(start)
