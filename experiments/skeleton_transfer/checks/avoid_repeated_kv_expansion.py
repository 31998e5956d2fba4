"""Recalled contents; Gemma 2 logits, whose eager attention caps the scores."""

import torch


def variant(module, seed):
    torch.manual_seed(seed)
    memory = module.SharedMemory(3, 5.0)
    band = torch.ones(8, 8, dtype=torch.bool).tril()
    return {
        "recalled": memory.recall(torch.randn(2, 6, 8, 10), torch.randn(2, 2, 8, 10), torch.randn(2, 2, 8, 10), band)
    }


def library(module, seed):
    from transformers import Gemma2Config
    from transformers.models.gemma2 import modeling_gemma2

    config = Gemma2Config(
        vocab_size=120, hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, head_dim=8, sliding_window=6, max_position_embeddings=64,
        attn_implementation="eager",  # pyrefly: ignore[unexpected-keyword]
    )  # fmt: skip
    torch.manual_seed(seed)
    checkpoint = modeling_gemma2.Gemma2ForCausalLM(config).state_dict()
    model = module.Gemma2ForCausalLM(config).eval()
    model.load_state_dict(checkpoint)
    torch.manual_seed(seed + 1)  # construction may draw more or fewer numbers than before
    tokens = torch.randint(3, 120, (2, 14))
    with torch.no_grad():
        whole = model(tokens)
        more = model(tokens[:, :3], past_key_values=whole.past_key_values)
    return {"logits": whole.logits, "logits with a cache": more.logits}
