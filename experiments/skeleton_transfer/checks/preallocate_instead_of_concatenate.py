"""Walks of the variant; tokens of a small Llama through transformers' own generation loops, alone and with a draft."""

import torch


def variant(module, seed):
    torch.manual_seed(seed)
    with torch.no_grad():
        centre, trail = module.walk(torch.randn(4, 6), 0.4, 37)
    return {"centre": centre, "trail": trail}


def library(module, seed):
    from transformers import LlamaConfig, LlamaForCausalLM

    # The generation loops of the module in question stand in front of the installed ones, which Llama has already.
    own = issubclass(LlamaForCausalLM, module.GenerationMixin)
    model_class = LlamaForCausalLM if own else type("Model", (module.GenerationMixin, LlamaForCausalLM), {})
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(seed)
    model = model_class(config).eval()
    draft = LlamaForCausalLM(config).eval()
    draft.load_state_dict({name: value + 0.004 * torch.randn_like(value) for name, value in model.state_dict().items()})
    prompt = torch.randint(3, 97, (3, 5))
    ending = {"max_new_tokens": 40, "pad_token_id": 0, "eos_token_id": None}
    greedy = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, **ending)
    torch.manual_seed(seed + 1)
    sampled = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=20, **ending)
    alone = prompt[:1]
    assisted = model.generate(
        alone, attention_mask=torch.ones_like(alone), do_sample=False, assistant_model=draft, **ending
    )
    return {"greedy": greedy, "sampled": sampled, "assisted": assisted}
