"""Read-outs of the variant; attention of Whisper, with its own checkpoint loaded, alone and across."""

import torch


def variant(module, seed):
    torch.manual_seed(seed)
    heads = (torch.randn(7, 48), torch.randn(33, 48), torch.randn(5, 48))
    readout = module.Readout(heads, bound=2.5)
    return readout.step(torch.randn(11, 48), torch.randn(11, 48))


def library(module, seed):
    from transformers import WhisperConfig
    from transformers.models.whisper import modeling_whisper

    config = WhisperConfig(d_model=48, decoder_attention_heads=4, encoder_attention_heads=4)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    checkpoint = modeling_whisper.WhisperAttention(embed_dim=48, num_heads=4, config=config).state_dict()
    attention = module.WhisperAttention(embed_dim=48, num_heads=4, config=config).eval()
    attention.load_state_dict(checkpoint)
    torch.manual_seed(seed + 1)  # construction may draw more or fewer numbers than before
    queries, memory = torch.randn(2, 9, 48), torch.randn(2, 13, 48)
    with torch.no_grad():
        alone = attention(queries)[0]
        across = attention(queries, key_value_states=memory)[0]
    return {"alone": alone, "across": across}
