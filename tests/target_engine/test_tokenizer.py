"""Tokenizing: what the metadata of a GGUF file spells, chat templates, and text that never splits a character."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend

from target_engine.checkpoint import Checkpoint
from target_engine.errors import EngineError
from target_engine.execution.text import TextStream, overlap
from target_engine.tokenizer import IncrementalDetokenizer, Tokenizer, render, tokenizer_from_metadata
from tests.tiny_model import CHAT_TEMPLATE, make_tiny_gguf, tiny_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Path) -> Tokenizer:
    return Tokenizer.load(tiny_model, (2,))


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The same tokenizer, rebuilt from the metadata of a GGUF file."""
    folder = tmp_path_factory.mktemp("gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        checkpoint = Checkpoint.open(str(make_tiny_gguf(folder / "m.gguf")))
    return Tokenizer.load(checkpoint.folder, checkpoint.config.eos_token_ids)


@pytest.fixture(scope="module")
def size(tokenizer: Tokenizer) -> int:
    return tokenizer.backend.get_vocab_size()


TEXT = st.text(max_size=60) | st.sampled_from(
    ["naïve 🎉 text", "家に帰る", "a\n\n  b", "<|im_end|>", "the quick brown fox 12"]
)


@given(text=TEXT.map(lambda text: text.encode("utf-8", "ignore").decode()))
def test_decoding_gives_the_text_back(tokenizer: Tokenizer, text: str) -> None:
    for special in ("<|endoftext|>", "<|im_start|>", "<|im_end|>"):
        text = text.replace(special, "")
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(text=TEXT)
def test_a_tokenizer_from_gguf_metadata_is_the_same(tokenizer: Tokenizer, twin: Tokenizer, text: str) -> None:
    assert twin.encode(text) == tokenizer.encode(text)


def test_metadata_gives_special_tokens_and_template(twin: Tokenizer) -> None:
    assert twin.eos_token_ids == {2}
    assert twin.chat_template == CHAT_TEMPLATE
    assert twin.encode("<|im_end|>") == [2]


@given(ids=st.lists(st.integers(0, 299), max_size=40))
def test_streamed_pieces_are_the_whole_text(tokenizer: Tokenizer, size: int, ids: list[int]) -> None:
    ids = [number % size for number in ids]
    stream = IncrementalDetokenizer(tokenizer)
    pieces = [stream.push(number) for number in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids)


@given(text=st.text(alphabet="añ家🎉 \u0301x", min_size=1, max_size=20))
def test_a_piece_ends_at_a_character(tokenizer: Tokenizer, text: str) -> None:
    stream = IncrementalDetokenizer(tokenizer)
    shown = ""
    for number in tokenizer.encode(text):
        shown += stream.push(number)
        assert text.startswith(shown), "a replacement character was shown for half of a character"
    assert shown == text


STOPS = st.lists(st.text("abc ", min_size=1, max_size=4), max_size=3)


@given(text=st.text("abc ", max_size=30), stops=STOPS)
def test_text_ends_at_the_first_stop_string(tokenizer: Tokenizer, text: str, stops: list[str]) -> None:
    stream = TextStream(tokenizer, stops)
    shown, consumed = "", 0
    for number in tokenizer.encode(text):
        shown += stream.push(number)
        consumed += 1
        assert not any(stop in shown for stop in stops)
        if stream.stopped:
            break
    seen = tokenizer.decode(tokenizer.encode(text)[:consumed])
    shown += stream.finish()
    starts = [seen.find(stop) for stop in stops if stop in seen]
    assert stream.stopped == bool(starts)
    assert shown == (seen[: min(starts)] if starts else text)


def test_overlap_is_the_longest_beginning() -> None:
    assert overlap("say en", "end") == 2
    assert overlap("aa", "aab") == 2
    assert overlap("end", "end") == 0, "a whole stop string is not a partial one"
    assert overlap("xyz", "end") == 0


MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "héllo"}]


def test_the_chat_template_is_the_one_of_transformers(tiny_model: Path, tokenizer: Tokenizer) -> None:
    from transformers import AutoTokenizer

    other = AutoTokenizer.from_pretrained(str(tiny_model))
    expected = other.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert tokenizer.chat(MESSAGES) == list(expected)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{% for %}",
        "{{ undefined_name.field }}",
        "{{ 1 / 0 }}",
        "{{ messages + 1 }}",
    ],
)
def test_a_bad_template_is_one_line_and_cannot_reach_out(template: str) -> None:
    with pytest.raises(EngineError, match="chat template"):
        render(template, MESSAGES, {})


def test_unknown_tokenizers_are_refused() -> None:
    fields = {"tokenizer.ggml.model": "llama"}
    with pytest.raises(EngineError, match=r"m\.gguf: tokenizer 'llama'.*tokenizer\.json"):
        tokenizer_from_metadata(lambda name, default=None: fields.get(name, default), "m.gguf")
    spelled = tiny_tokenizer()["model"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "exotic",
        "tokenizer.ggml.tokens": list(spelled["vocab"]),
        "tokenizer.ggml.merges": [],
    }
    with pytest.raises(EngineError, match="'exotic'"):
        tokenizer_from_metadata(lambda name, default=None: fields.get(name, default), "m.gguf")


def test_bos_is_prepended_where_metadata_asks_for_it() -> None:
    from tokenizers import Tokenizer as Backend

    spelled = tiny_tokenizer()["model"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": sorted(spelled["vocab"], key=spelled["vocab"].__getitem__),
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.token_type": [3, 3, 3],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.add_bos_token": True,
    }
    values = tokenizer_from_metadata(lambda name, default=None: fields.get(name, default), "m.gguf")
    assert Backend.from_str(json.dumps(values)).encode("ab").ids[0] == 1


def test_a_folder_without_tokenizer_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"no tokenizer\.json"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(EngineError, match="not a tokenizer"):
        Tokenizer.load(tmp_path)


def test_llama_3_takes_known_words_whole_and_begins_with_bos() -> None:
    """No merges lead to "Ġcat", and the file does not say whether to add BOS: llama.cpp's defaults for this name."""
    spelled = tiny_tokenizer()["model"]
    tokens = [*sorted(spelled["vocab"], key=spelled["vocab"].__getitem__), "Ġcat", "<tool>"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in spelled["merges"]],
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 4) + [4],
        "tokenizer.ggml.bos_token_id": 1,
    }

    def build() -> Tokenizer:
        values = tokenizer_from_metadata(lambda name, default=None: fields.get(name, default), "m.gguf")
        return Tokenizer(Backend.from_str(json.dumps(values)), None, {}, ())

    assert build().encode(" cat<tool>") == [1, tokens.index("Ġcat"), tokens.index("<tool>")]
    assert build().decode([1, tokens.index("Ġcat"), tokens.index("<tool>")]) == " cat<tool>", (
        "text, not a control token"
    )
    fields["tokenizer.ggml.pre"] = "gpt-2"
    assert len(build().encode(" cat")) > 1, "other tokenizers go by their merges"
