"""Text to token ids and back: `tokenizers` underneath, chat templates in a sandbox, streaming that never splits a
character.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from target_engine.errors import EngineError
from target_engine.jsonfile import json_object

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL, USER_DEFINED = 3, 4  # GGUF token types: tokens that text never spells, and whole words beside the merges
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")  # llama.cpp's names


class Tokenizer:
    """A model's tokenizer. `eos_token_ids` end a generation; `chat_template` is None when the model brings none."""

    def __init__(
        self, backend: Backend, chat_template: str | None, special: dict[str, str], eos: Sequence[int]
    ) -> None:
        self.backend = backend
        self.chat_template = chat_template
        self.special = special
        self.eos_token_ids = frozenset(eos)

    @classmethod
    def load(cls, folder: Path, eos: Sequence[int] = ()) -> Tokenizer:
        """From `tokenizer.json` and `tokenizer_config.json` in a model folder."""
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise EngineError(f"{folder}: no tokenizer.json")
        try:
            backend = Backend.from_file(str(path))
        except Exception as error:  # the library raises plain Exception
            raise EngineError(f"{path}: not a tokenizer: {error}") from error
        config_path = folder / "tokenizer_config.json"
        config = json_object(config_path) if config_path.is_file() else {}
        special = {name: text for name in ("bos_token", "eos_token") if (text := _content(config.get(name)))}
        template = config.get("chat_template")
        template_path = folder / "chat_template.jinja"
        if template_path.is_file():
            template = template_path.read_text(encoding="utf-8")
        elif isinstance(template, list):  # several named templates
            template = next((item["template"] for item in template if item["name"] == "default"), None)
        ends = set(eos)
        if "eos_token" in special and (number := backend.token_to_id(special["eos_token"])) is not None:
            ends.add(number)
        return cls(backend, template, special, sorted(ends))

    def encode(self, text: str) -> list[int]:
        """Token ids of a prompt, with the model's leading special tokens where it has such."""
        return self.backend.encode(text).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of token ids, special tokens left out; bytes that are no UTF-8 become U+FFFD."""
        return self.backend.decode(list(token_ids), skip_special_tokens=True)

    def chat(self, messages: Sequence[dict[str, str]]) -> list[int]:
        """Token ids of a conversation up to where the assistant's answer begins."""
        if not self.chat_template:
            raise EngineError("this model brings no chat template: use plain prompts")
        text = render(self.chat_template, messages, self.special)
        return self.backend.encode(text, add_special_tokens=False).ids


def render(template: str, messages: Sequence[dict[str, str]], special: dict[str, str]) -> str:
    """A conversation through a chat template, in a sandbox: a template comes with the weights and is not trusted."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(message: str) -> None:
        raise EngineError(f"chat template: {message}")

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    try:
        names = {"raise_exception": refuse, "add_generation_prompt": True, **special}
        return environment.from_string(template).render(messages=list(messages), **names)
    except EngineError:
        raise
    except Exception as error:  # a template is a program: it can fail in any way
        raise EngineError(f"chat template: {error}") from error


class IncrementalDetokenizer:
    """Text of a growing sequence, piece by piece. A piece ends at a character; the pieces together are `decode` of
    all ids.

    Text is decoded from a point a few tokens back, since a token's text may depend on the one before it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._start = 0  # decoding starts here
        self._emitted = 0  # ids before this one have been emitted as text

    def push(self, token_id: int) -> str:
        """Take one token; returns the text that is now certain, empty while a character is incomplete."""
        self._ids.append(token_id)
        return self._take(final=False)

    def finish(self) -> str:
        """What is left, incomplete characters as U+FFFD."""
        return self._take(final=True)

    def _take(self, final: bool) -> str:
        before = self._tokenizer.decode(self._ids[self._start : self._emitted])
        text = self._tokenizer.decode(self._ids[self._start :])
        if len(text) <= len(before) or (text.endswith("\ufffd") and not final):
            return ""
        self._start, self._emitted = self._emitted, len(self._ids)
        return text[len(before) :]


def _content(token: Any) -> str | None:
    """The text of a special token of `tokenizer_config.json`, which is a string or an object."""
    return token.get("content") if isinstance(token, dict) else token


def tokenizer_from_metadata(field: Callable[..., Any], where: str) -> dict[str, Any]:
    """`tokenizer.json` values from GGUF metadata; `field(name[, default])` reads it. Byte-level BPE only."""
    kind, pre = field("tokenizer.ggml.model"), field("tokenizer.ggml.pre", "default")
    if kind != "gpt2":
        raise EngineError(
            f"{where}: tokenizer {kind!r} cannot be built from metadata: put its tokenizer.json beside the file"
        )
    tokens = field("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ", 1)) for merge in field("tokenizer.ggml.merges")]
    try:
        # Llama 3 takes a word that is in the vocabulary whole, also where no merges lead to it.
        vocabulary = {text: number for number, text in enumerate(tokens)}
        model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=pre in LLAMA3)
    except Exception as error:  # the library raises plain Exception
        raise EngineError(f"{where}: the tokenizer in the metadata is damaged: {error}") from error
    backend = Backend(model)
    backend.pre_tokenizer = _pre_tokenizer(pre, where)
    backend.decoder = decoders.ByteLevel()
    types = field("tokenizer.ggml.token_type", [])
    backend.add_tokens(
        [
            AddedToken(text, special=type == CONTROL, normalized=False)
            for text, type in zip(tokens, types, strict=False)
            if type in (CONTROL, USER_DEFINED)
        ]
    )
    bos = field("tokenizer.ggml.bos_token_id", None)
    if field("tokenizer.ggml.add_bos_token", pre in LLAMA3) and bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", pair=None, special_tokens=[(tokens[bos], bos)]
        )
    return json.loads(backend.to_str())


def _pre_tokenizer(name: str, where: str) -> Any:
    """How text is cut before byte-pair merging, by llama.cpp's name for it."""
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "smollm":
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), byte_level])
    if name in ("default", "gpt-2"):
        return byte_level
    if name in LLAMA3:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise EngineError(f"{where}: pre-tokenizer {name!r} is not known: put the model's tokenizer.json beside the file")
