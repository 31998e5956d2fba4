"""A Llama small enough to start in milliseconds, written as a Hugging Face folder or as one GGUF file. Needs no torch.

The weights are random but sharp enough that greedy decoding has no near ties; the tokenizer is a byte-level BPE that
can encode any text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WORDS = (
    "the quick brown fox jumps over a lazy dog while engines compute tokens in blocks and then the cache is read again"
)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tiny_dims(**dims: Any) -> dict[str, Any]:
    """The `config.json` of the tiny model, with `dims` in place of the defaults."""
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 300,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    unknown = set(dims) - set(config)
    if unknown:
        raise ValueError(f"unknown dimensions of the tiny model: {sorted(unknown)}")
    return config | dims


def tiny_weights(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Random float32 weights by Hugging Face name."""
    rng = np.random.default_rng(seed)
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)

    def norm() -> np.ndarray:
        return (1.0 + 0.1 * rng.standard_normal(hidden)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden, 1.5)}
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        weights |= {
            prefix + "input_layernorm.weight": norm(),
            prefix + "self_attn.q_proj.weight": matrix(heads * head, hidden, 2.0),
            prefix + "self_attn.k_proj.weight": matrix(kv_heads * head, hidden, 2.0),
            prefix + "self_attn.v_proj.weight": matrix(kv_heads * head, hidden, 2.0),
            prefix + "self_attn.o_proj.weight": matrix(hidden, heads * head, 2.0),
            prefix + "post_attention_layernorm.weight": norm(),
            prefix + "mlp.gate_proj.weight": matrix(inner, hidden, 2.0),
            prefix + "mlp.up_proj.weight": matrix(inner, hidden, 2.0),
            prefix + "mlp.down_proj.weight": matrix(hidden, inner, 2.0),
        }
    weights["model.norm.weight"] = norm()
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    return weights


def tiny_tokenizer(vocab_size: int = 300) -> dict[str, Any]:
    """A `tokenizer.json`: byte-level BPE whose merges spell common words, three special tokens first."""
    from tokenizers import pre_tokenizers

    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges: list[list[str]] = []
    for word in ("Ġ" + text for text in WORDS.split()):
        for end in range(2, len(word) + 1):
            left, right = word[: end - 1], word[end - 1]
            if len(tokens) < vocab_size and left in tokens and left + right not in tokens:
                tokens.append(left + right)
                merges.append([left, right])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": number, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
            for number, text in enumerate(SPECIAL)
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {text: number for number, text in enumerate(tokens)},
            "merges": merges,
        },
    }  # fmt: skip


def make_tiny_llama(directory: str | Path, seed: int = 0, **dims: Any) -> Path:
    """Write `config.json`, `model.safetensors`, `tokenizer.json` and `tokenizer_config.json` into `directory`; returns
    it.
    """
    from safetensors.numpy import save_file

    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    config = tiny_dims(**dims)
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    save_file(tiny_weights(config, seed), str(folder / "model.safetensors"), metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer(config["vocab_size"])))
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[1],
        "eos_token": SPECIAL[2],
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=1))
    return folder


GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_tiny_gguf(path: str | Path, quantisation: str = "Q8_0", seed: int = 0, **dims: Any) -> Path:
    """Write the tiny model as one GGUF file, the way llama.cpp's converter does (query and key rows interleaved)."""
    import gguf

    path = Path(path)
    config = tiny_dims(**dims)
    tokenizer = tiny_tokenizer(config["vocab_size"])
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    tokens += [f"<unused{number}>" for number in range(len(tokens), config["vocab_size"])]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3 if number < len(SPECIAL) else 1 for number in range(len(tokens))])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
    kind = gguf.GGMLQuantizationType[quantisation]
    for name, values in tiny_weights(config, seed).items():
        short = _gguf_name(name)
        if short.endswith(("attn_q.weight", "attn_k.weight")):
            heads = config["num_attention_heads" if "attn_q" in short else "num_key_value_heads"]
            values = values.reshape(heads, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        matrix = values.ndim == 2
        data = gguf.quants.quantize(values, kind) if matrix else values
        writer.add_tensor(short, data, raw_dtype=kind if matrix else gguf.GGMLQuantizationType.F32)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _gguf_name(name: str) -> str:
    """The GGUF name of a Hugging Face tensor."""
    whole = {
        "model.embed_tokens.weight": "token_embd.weight",
        "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    if name in whole:
        return whole[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{GGUF_NAMES[rest.removesuffix('.weight')]}.weight"
