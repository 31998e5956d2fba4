"""Walks of the variant; sampled and greedy tokens of a small Llama through transformers' own generation loop."""

import torch


def variant(module, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        centre, trail = module.walk(torch.randn(4, 6), 0.4, 37)
    return {"centre": centre, "trail": trail}


def library(module, seed):
    from transformers import LlamaConfig, LlamaForCausalLM

    # The generation loop of the module in question stands in front of the installed one, which Llama has already.
    own = issubclass(LlamaForCausalLM, module.GenerationMixin)
    model_class = LlamaForCausalLM if own else type("Model", (module.GenerationMixin, LlamaForCausalLM), {})

    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = model_class(config).eval()
    prompt = torch.randint(3, 97, (3, 5))
    ending = {"max_new_tokens": 40, "pad_token_id": 0, "eos_token_id": None}
    greedy = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **ending)
    torch.manual_seed(seed + 1)
    sampled = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=20, **ending)
    return {"greedy": greedy, "sampled": sampled}
