"""The variant's rounds with weights that oneDNN would lay out; OPT logits, with the packed copies there and used."""

import torch


def variant(module, seed):
    torch.manual_seed(seed)
    kernels = {"mixing": torch.randn(96, 96) / 8, "readout": torch.randn(40, 96) / 8}
    stage = module.MixingStage(kernels, torch.randn(96))
    if module.TRANSFORMED:
        packed = [name for name, value in vars(stage).items() if isinstance(value, torch.Tensor) and value.is_mkldnn]
        assert len(packed) == 2, f"packed weights: {packed}"
    return {"signal": stage.advance(torch.randn(6, 96), 3), "norms": stage.norms()}


def library(module, seed):
    from transformers import OPTConfig
    from transformers.models.opt import modeling_opt

    config = OPTConfig(
        vocab_size=211, hidden_size=64, num_hidden_layers=2, ffn_dim=128, num_attention_heads=4,
        word_embed_proj_dim=48, max_position_embeddings=64,
        attn_implementation="eager",  # pyrefly: ignore[unexpected-keyword]
    )  # fmt: skip
    torch.manual_seed(seed)
    checkpoint = modeling_opt.OPTForCausalLM(config).state_dict()
    model = module.OPTForCausalLM(config).eval()
    model.load_state_dict(checkpoint)
    torch.manual_seed(seed + 1)  # construction may draw more or fewer numbers than before
    tokens = torch.randint(5, 200, (3, 17))
    with torch.no_grad():
        before = model(tokens).logits
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
        after = model(tokens).logits
    if module.TRANSFORMED:
        packed = sum("_packed_weight" in part.__dict__ for part in model.modules())
        assert packed >= 12, f"{packed} linear layers are packed"
    return {"before": before, "after new weights": after}
