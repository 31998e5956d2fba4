"""Shows the engine to a judge that knows nothing of it: plain values and numpy arrays in, plain values and numpy
arrays out.

`create()` gives an object with the methods of the judge's target protocol (version 2), which this module does not
import. Half-width floats cross as float32.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from target_engine import sharded_operators
from target_engine.checkpoint import Checkpoint
from target_engine.errors import EngineError
from target_engine.launch import LaunchConfig, launch_space, problems
from target_engine.models.config import ModelConfig
from target_engine.ops import registry
from target_engine.ops.specification import Arrays, Case, ModelSizes, OperatorSpec, TensorSpec, settings_of
from target_engine.session import EngineSession

PROTOCOL_VERSION = 2
PACKAGE = Path(__file__).parent
PROFILE = "target_engine/profiles/run.toml"
PROTECTED_NAMES = {"spec.py", "reference.py", "shardings.py"}
PROTECTED_FILES = {
    "adapter.py",
    "session.py",
    "spans.py",
    "seeded.py",
    "sharded_operators.py",
    "execution/captured.py",
    "execution/reference.py",
    "execution/scoring.py",
    "execution/taps.py",
    "ops/specification.py",
    "ops/paged.py",
    "ops/recurrence.py",
    "parallel/sharding.py",
    "parallel/cutting.py",
    "parallel/strategy.py",
    "parallel/simulate.py",
    "parallel/threads.py",
    "parallel/topology.py",
    "parallel/watch.py",
}
PROTECTED_FOLDERS = {"workloads", "profiles"}
SUFFIXES = {".py", ".c", ".h", ".toml", ".jsonl", ".txt"}

SIMULATED_TIMEOUT = 20
"""Seconds: ranks that are threads have nobody to wait for but each other."""

WORKLOADS = (
    ("main", False, "16 requests of 40 to 270 prompt tokens, half behind a common prefix, 32 tokens each"),
    ("heldout", True, "12 requests with other texts, lengths and output lengths"),
    ("smoke", False, "3 short requests of 8 tokens"),
)
SCENARIOS = (
    ("prefill", "prompts alone: one output token a request", None),
    ("decode", "one-token prompts, long outputs", None),
    (
        "prefill_transfer",
        "prefill and transfer of its KV blocks",
        "this engine has one process and nothing to transfer to",
    ),
    ("encode", "embeddings of a modality encoder", "the model has text alone"),
)


class TargetEngine:
    """The engine before anything is started."""

    def __init__(self) -> None:
        self._handles: list[tuple[OperatorSpec, LaunchConfig, Callable[..., Any]]] = []

    def describe(self) -> dict[str, Any]:
        """What this target is."""
        return {
            "protocol_version": PROTOCOL_VERSION,
            "name": "target_engine",
            "profile_path": PROFILE,
            "launch_space": [asdict(parameter) for parameter in launch_space()],
            "workloads": [
                {"name": name, "path": f"target_engine/workloads/{name}.jsonl", "held_out": held_out, "doc": doc}
                for name, held_out, doc in WORKLOADS
            ],
            "scenarios": [{"name": name, "doc": doc, "unsupported": reason} for name, doc, reason in SCENARIOS],
        }

    def validate_config(self, config: dict[str, Any]) -> list[dict[str, Any]]:
        """Problems with a launch configuration; reads no weights."""
        return [{"parameter": parameter, "message": message} for parameter, message in problems(config)]

    def files(self) -> list[dict[str, Any]]:
        """Every file of the package with what may be done to it."""
        paths = sorted(path for path in PACKAGE.rglob("*") if path.suffix in SUFFIXES and path.is_file())
        return [
            {"path": f"target_engine/{relative}", "role": _role(relative)}
            for path in paths
            if "__pycache__" not in (relative := path.relative_to(PACKAGE).as_posix())
        ]

    def operators(self, config: dict[str, Any]) -> list[dict[str, Any]]:
        """The operators that the configured model runs, with their cases; those of its own sizes carry the tag
        `microbench`.
        """
        launch = LaunchConfig.parse(config)
        model = Checkpoint.open(launch.model).config
        sizes = model_sizes(launch, model)
        return [_operator_info(registry.specification(name), launch, sizes) for name in registry.running(sizes)]

    def operator_inputs(self, operator: str, case: dict[str, Any], config: dict[str, Any], seed: int) -> Arrays:
        """Fresh inputs, constants included, exactly representable in the compute type."""
        spec, launch = registry.specification(operator), LaunchConfig.parse(config)
        arrays = spec.make_inputs(_case(case), seed)
        dtypes = {tensor.name: tensor.dtype for tensor in spec.tensors}
        return {name: _rounded(array, dtypes[name], launch.dtype) for name, array in arrays.items()}

    def operator_reference(self, operator: str, case: dict[str, Any], config: dict[str, Any], inputs: Arrays) -> Arrays:
        """Expected outputs and inout arrays, computed in float64."""
        wide = {name: array.astype(np.float64) if array.dtype.kind == "f" else array for name, array in inputs.items()}
        settings = settings_of(_case(case).dims, LaunchConfig.parse(config).dtype)
        return registry.reference(operator)(settings, **wide)

    def operator_open(self, operator: str, config: dict[str, Any], case: dict[str, Any], constants: Arrays) -> int:
        """Build the selected implementation around its constants; returns a handle for `operator_run`."""
        import torch

        from target_engine.execution.host import available_threads, keep_freed_memory

        launch, spec = LaunchConfig.parse(config), registry.specification(operator)
        torch.set_num_threads(launch.threads or available_threads())
        keep_freed_memory()
        settings = settings_of(_case(case).dims, launch.dtype)
        with torch.inference_mode():
            tensors = {
                tensor.name: to_torch(constants[tensor.name], tensor, launch.dtype).clone()
                for tensor in spec.named("constant")
            }
            implementation = registry.build(operator, launch.implementation(operator), settings, **tensors)
        self._handles.append((spec, launch, implementation))
        return len(self._handles) - 1

    def operator_run(self, handle: int, inputs: Arrays) -> Arrays:
        """Run once on the runtime and inout arrays; the given arrays stay as they are."""
        import torch

        if not 0 <= handle < len(self._handles):
            raise EngineError(f"operator handle {handle} was never opened")
        spec, launch, implementation = self._handles[handle]
        with torch.inference_mode():
            arguments = []
            for tensor in spec.named("runtime", "inout"):
                value = to_torch(inputs[tensor.name], tensor, launch.dtype)
                arguments.append((tensor, value.clone() if tensor.kind == "inout" else value))
            result = implementation(*(value for _, value in arguments))
        outputs = spec.named("output")
        results = result if isinstance(result, tuple) else (result,) if outputs else ()
        if len(results) != len(outputs):
            raise EngineError(f"{spec.name} returned {len(results)} tensors, its specification has {len(outputs)}")
        found = {tensor.name: to_numpy(value) for tensor, value in zip(outputs, results, strict=True)}
        return found | {tensor.name: to_numpy(value) for tensor, value in arguments if tensor.kind == "inout"}

    def start(self, config: dict[str, Any]) -> EngineSession:
        """Start the engine."""
        return EngineSession(LaunchConfig.parse(config))

    # What follows is optional in the protocol: operators and models over several ranks.

    def operator_plan(self, config: dict[str, Any]) -> dict[str, Any]:
        """Every operator in every phase with its cut; see `sharded_operators.plan`."""
        return sharded_operators.plan(config)

    def operator_shardings(self, operator: str, config: dict[str, Any]) -> dict[str, Any]:
        """All ways to cut an operator, or why it is never cut."""
        return sharded_operators.shardings(operator, config)

    def sharded_question(
        self, operator: str, sharding: str, case: dict[str, Any], config: dict[str, Any], inputs: Arrays, ranks: int,
        cut: int,
    ) -> dict[str, Any]:  # fmt: skip
        """What each rank is given and must give; see `sharded_operators.question`."""
        dtype = LaunchConfig.parse(config).dtype
        return sharded_operators.question(operator, sharding, _case(case), dtype, inputs, ranks, cut)

    def captured_inputs(self, config: dict[str, Any], tokens: list[int]) -> dict[str, Any]:
        """Inputs of operators of a running model; see `execution.captured`."""
        from target_engine.execution.captured import captured

        found, left_out = captured(LaunchConfig.parse(config), tokens)
        calls = [{"operator": operator, "case": asdict(case), "inputs": inputs} for operator, case, inputs in found]
        return {"calls": calls, "left_out": left_out}

    def sharded_run(
        self, operator: str, sharding: str, case: dict[str, Any], config: dict[str, Any], pieces: list[Arrays],
        options: dict[str, Any],
    ) -> dict[str, Any]:  # fmt: skip
        """Run over simulated ranks; see `sharded_operators.run`."""
        return sharded_operators.run(operator, sharding, _case(case), config, pieces, **options)

    def unavailable_operators(self, config: dict[str, Any], operators: list[str]) -> dict[str, str]:
        """Why chosen implementations cannot run on this machine, by operator; those that can are left out."""
        return sharded_operators.unavailable(config, operators)

    def start_simulated(self, config: dict[str, Any]) -> EngineSession:
        """Start the engine with all its ranks in this process."""
        from target_engine.parallel.threads import ThreadedRunner

        launch = LaunchConfig.parse(config)
        launch = launch.model_copy(update={"rank_timeout": min(launch.rank_timeout, SIMULATED_TIMEOUT)})
        return EngineSession(launch, ThreadedRunner.open if launch.tp * launch.cp > 1 else None)


def create() -> TargetEngine:
    """The target."""
    return TargetEngine()


def _role(relative: str) -> str:
    """Role of a file by its path within the package."""
    path = Path(relative)
    if f"target_engine/{relative}" == PROFILE:
        return "profile"
    if path.name in PROTECTED_NAMES or relative in PROTECTED_FILES or path.parts[0] in PROTECTED_FOLDERS:
        return "protected"
    return "editable"


def _case(case: dict[str, Any]) -> Case:
    return Case(case["name"], dict(case["dims"]), case.get("distribution", "normal"), tuple(case.get("tags", ())))


def model_sizes(launch: LaunchConfig, model: ModelConfig) -> ModelSizes:
    """Sizes of the configured model."""
    return ModelSizes(
        hidden=model.hidden_size,
        intermediate=model.intermediate_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        vocabulary=model.vocab_size,
        block_size=launch.block_size,
        max_batch=launch.max_batch,
        prefill_chunk=launch.prefill_chunk,
        linear_heads=model.linear_num_heads,
        key_dim=model.linear_key_dim,
        value_dim=model.linear_value_dim,
        conv_width=model.conv_width,
        state_slots=launch.state_slots if model.kda_layers else 0,
        context_ranks=launch.cp,
    )


def _operator_info(spec: OperatorSpec, launch: LaunchConfig, sizes: ModelSizes) -> dict[str, Any]:
    found = registry.implementations(spec.name)
    return {
        "name": spec.name,
        "role": spec.role,
        "doc": spec.doc,
        "tensors": [asdict(tensor) for tensor in spec.tensors],
        "cases": [asdict(case) for case in (*spec.cases, *spec.microbench(sizes))],
        "tolerance": {dtype: asdict(tolerance) for dtype, tolerance in spec.tolerance.items()},
        "implementations": list(found),
        "selected": launch.implementation(spec.name),
        "files": {name: f"target_engine/ops/{spec.name}/{name}.py" for name in found},
        "deterministic": spec.deterministic,
    }


def to_torch(array: np.ndarray, tensor: TensorSpec, compute: str) -> Any:
    """A tensor over the array's memory where the type allows, otherwise a converted copy."""
    import torch

    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array)
    return torch.from_numpy(array).to(getattr(torch, compute if tensor.dtype == "compute" else tensor.dtype))


def to_numpy(tensor: Any) -> np.ndarray:
    """The values as a C-ordered array; bfloat16 as float32."""
    import torch

    if type(tensor) is not torch.Tensor:
        raise EngineError(f"an operator returned {type(tensor).__name__}, not a tensor")
    return np.ascontiguousarray((tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy())


def _rounded(array: np.ndarray, dtype: str, compute: str) -> np.ndarray:
    """The array with the values that its type can hold."""
    if dtype != "compute" or compute == "float32":
        return array
    import torch

    return torch.from_numpy(array).to(torch.bfloat16).float().numpy()
