"""Levelled frames; T5's norm, and T5's logits through it."""

import torch


def variant(module, seed):
    torch.manual_seed(seed)
    frames = torch.randn(5, 7, 72) * torch.logspace(-3, 3, 7)[:, None]
    return {"levelled": module.level_frames(frames, torch.randn(72), 1e-6)}


def library(module, seed):
    from transformers import T5Config
    from transformers.models.t5 import modeling_t5

    config = T5Config(vocab_size=101, d_model=48, d_kv=12, d_ff=96, num_layers=2, num_heads=4)
    torch.manual_seed(seed)
    checkpoint = modeling_t5.T5ForConditionalGeneration(config).state_dict()
    model = module.T5ForConditionalGeneration(config).eval()
    model.load_state_dict(checkpoint)
    torch.manual_seed(seed + 1)  # construction may draw more or fewer numbers than before
    tokens, answer = torch.randint(2, 100, (2, 12)), torch.randint(2, 100, (2, 5))
    norm = module.T5LayerNorm(48, eps=1e-6)
    with torch.no_grad():
        norm.weight.copy_(torch.randn(48))
        normed = norm(torch.randn(4, 48) * 100)
        logits = model(input_ids=tokens, decoder_input_ids=answer).logits
    return {"norm": normed, "logits": logits}
