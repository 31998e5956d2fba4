"""What this machine has for a run, and what each lack costs.

Nothing heavy is imported: versions come from package metadata, devices from their own tools. A lack is `missing` when
nothing can run without it, `absent` when only a part of the product is lost.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from infra_agent.paths import home

State = Literal["ok", "absent", "missing"]

LLM_KEYS = (
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
    "AZURE_API_KEY",
    "GEMINI_API_KEY",
    "MISTRAL_API_KEY",
    "DEEPSEEK_API_KEY",
    "OPENROUTER_API_KEY",
)
GIB = 2**30


@dataclass(frozen=True)
class Check:
    """One thing a run may need. `cost` is what its lack costs and how to mend it; empty when it is there."""

    name: str
    state: State
    found: str
    cost: str = ""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def examine() -> list[Check]:
    """Everything, in the order in which a person would mend it. Changes nothing."""
    return [
        python(),
        package("torch", "missing", "the engine computes with it: pip install torch"),
        package("triton", "absent", "only kernels for a GPU need it; the engine runs on the CPU without"),
        gpu(),
        compiler(),
        sandbox(),
        git(),
        weights(),
        llm_key(),
        cores(),
        memory(),
        disk(),
    ]


def python() -> Check:
    """The interpreter; an older one than the package asks for cannot have got this far."""
    return Check("Python", "ok", f"{platform.python_version()} at {sys.executable}")


def package(name: str, when_missing: State, cost: str) -> Check:
    """An installed distribution, from its metadata."""
    from importlib import metadata

    try:
        return Check(name, "ok", metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, when_missing, "not installed", cost)


def gpu() -> Check:
    """A GPU that its driver's own tool reports."""
    for tool, arguments in (
        ("nvidia-smi", ["--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]),
        ("rocm-smi", ["--showproductname", "--csv"]),
    ):
        listed = _output([tool, *arguments])
        if listed:
            return Check("GPU", "ok", "; ".join(line.strip() for line in listed.splitlines() if line.strip()))
    cost = "nothing can be timed or claimed for a GPU; the engine runs on the CPU"
    return Check("GPU", "absent", "none", cost)


def compiler() -> Check:
    """A C compiler that makes a shared library; `$CC` first."""
    cost = "C kernels (native attention, projections) cannot be compiled: install gcc or clang, or set CC"
    broken = ""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if not name or shutil.which(name.split()[0]) is None:
            continue
        with tempfile.TemporaryDirectory(prefix="infra-agent-") as folder:
            source = Path(folder) / "probe.c"
            source.write_text("#include <math.h>\ndouble root(double x) { return sqrt(x); }\n")
            library = str(Path(folder) / "probe.so")
            if _output([*name.split(), "-O2", "-shared", "-fPIC", str(source), "-o", library, "-lm"], 30.0) is not None:
                version = (_output([*name.split(), "--version"]) or name).splitlines()
                return Check("C compiler", "ok", version[0] if version else name)
        broken = broken or f"{name} cannot make a shared library"
    return Check("C compiler", "missing", broken or "none", cost)


def sandbox() -> Check:
    """How far candidate code can be confined."""
    from feedback import sandbox as confinement

    level = confinement.level()
    gaps = confinement.gaps(level)
    return Check("Sandbox", "absent" if gaps else "ok", level, "; ".join(gaps))


def git() -> Check:
    """The git executable."""
    found = _output(["git", "--version"])
    if found:
        return Check("git", "ok", found.strip())
    return Check("git", "missing", "none", "candidates are commits in a scratch repository: install git")


def weights() -> Check:
    """Model weights in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "infra-agent" / "models"
    files = [path for suffix in ("*.gguf", "*.safetensors") for path in sorted(cache.rglob(suffix))]
    if files:
        sizes = (f"{path.name} ({path.stat().st_size / 2**20:.0f} MiB)" for path in files[:3])
        return Check("Weights", "ok", ", ".join(sizes))
    cost = "runs need a model: `target-engine fetch-model`, or name your own with `model` in the goal"
    return Check("Weights", "absent", f"none in {cache}", cost)


def llm_key() -> Check:
    """Whether a key for a language model is set; the key itself is not read."""
    names = [name for name in LLM_KEYS if name in os.environ]
    if names:
        return Check("LLM key", "ok", ", ".join(names))
    return Check("LLM key", "absent", "none", "the embedded proposer drives every run; it needs none")


def cores() -> Check:
    """CPU cores that this process may use."""
    n = len(os.sched_getaffinity(0))
    if n > 1:
        return Check("CPU cores", "ok", str(n))
    return Check("CPU cores", "absent", str(n), "the judge shares the only core with what it times: intervals get wide")


def memory() -> Check:
    """Memory that is free for use."""
    sizes: dict[str, int] = {}
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            name, amount = line.split(":")
            sizes[name] = int(amount.split()[0]) * 1024
    except (OSError, ValueError):
        return Check("Memory", "absent", "unknown", "a run holds three copies of the weights: see that they fit")
    free, total = sizes.get("MemAvailable", 0), sizes.get("MemTotal", 0)
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    if free >= 4 * GIB:
        return Check("Memory", "ok", found)
    return Check(
        "Memory", "absent", found, "a run holds three copies of the weights: with less than 4 GiB it may be killed"
    )


def disk() -> Check:
    """Room where runs are kept."""
    folder = home()
    existing = next((path for path in (folder, *folder.parents) if path.exists()), Path("/"))
    if not existing.is_dir():
        return Check(
            "Disk", "missing", f"{existing} is a file", f"runs are kept in {folder}: set INFRA_AGENT_HOME elsewhere"
        )
    free = shutil.disk_usage(existing).free
    found = f"{free / GIB:.1f} GiB free for {folder}"
    if not os.access(existing, os.W_OK):
        return Check("Disk", "missing", f"{existing} cannot be written", "set INFRA_AGENT_HOME to a folder of yours")
    if free >= GIB:
        return Check("Disk", "ok", found)
    return Check("Disk", "missing", found, "a run writes evidence and worktrees: free 1 GiB, or set INFRA_AGENT_HOME")


_DEVICE_PROGRAM = """
import json, torch
if not torch.cuda.is_available():
    print(json.dumps({"problem": f"torch {torch.__version__} sees no device"}))
else:
    torch.manual_seed(0)
    a, b = (torch.randn(512, 512, dtype=torch.float64) for _ in range(2))
    out = {"name": torch.cuda.get_device_name(), "capability": list(torch.cuda.get_device_capability()),
           "memory_gib": torch.cuda.get_device_properties(0).total_memory / 2**30, "torch": torch.__version__}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        exact = a.to(dtype).double() @ b.to(dtype).double()
        got = (a.to("cuda", dtype) @ b.to("cuda", dtype)).double().cpu()
        out[f"{name}_error"] = ((got - exact).abs().max() / exact.abs().max()).item()
    print(json.dumps(out))
"""

#: Largest error of a 512 x 512 product, relative to its largest entry, with which a device counts as sound.
_DEVICE_TOLERANCE = {"float32_error": 1e-2, "bfloat16_error": 2e-2}


def device() -> Check:
    """Whether torch computes right on a GPU: asked in a process of its own, since torch is not imported here."""
    import json

    told = _output([sys.executable, "-c", _DEVICE_PROGRAM], 120.0)
    cost = "nothing that needs a GPU can be claimed from this machine"
    if not told:
        return Check("Device", "missing", "torch could not be asked (not installed, or it failed)", cost)
    answer = json.loads(told.strip().splitlines()[-1])
    if "problem" in answer:
        return Check("Device", "missing", answer["problem"], cost)
    errors = {name: answer[name] for name in _DEVICE_TOLERANCE}
    accuracy = ", ".join(f"{name.replace('_', ' ')} {error:.1e}" for name, error in errors.items())
    found = f"{answer['name']}, {answer['memory_gib']:.0f} GiB, torch {answer['torch']}, {accuracy}"
    wrong = [name for name, bound in _DEVICE_TOLERANCE.items() if not errors[name] <= bound]
    if wrong:
        return Check("Device", "missing", found, f"products are wrong ({', '.join(wrong)}): do not use it")
    return Check("Device", "ok", found)


def golden_kernels() -> Check:
    """Runs micro-kernels whose bits are known on the GPU, in a process of its own, and records what they did.

    Verdicts of the kernel layer are heuristic on a machine where that was never done.
    """
    import json

    from feedback.kernels import golden

    told = _output([sys.executable, "-m", "feedback.kernels.hardware"], 600.0)
    cost = "verdicts about kernels stay heuristic: nothing of them was seen on hardware"
    if not told:
        return Check("Kernels", "absent", "nothing was run: the micro-kernels' process failed", cost)
    answer = json.loads(told.strip().splitlines()[-1])
    if "problem" in answer:
        return Check("Kernels", "absent", answer["problem"], cost)
    record = golden.parsed(answer)
    golden.keep(record)
    if record.unexplained:
        names = ", ".join(record.unexplained)
        return Check("Kernels", "absent", record.line(), f"{cost.split(':')[0]}: {names} not as modelled")
    return Check("Kernels", "ok", record.line())


def _output(command: list[str], seconds: float = 10.0) -> str | None:
    """Standard output of a command, None when it is not there, fails or hangs."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
