"""What a worker does with kernels: the target object of a kernel worker (worker side, named by a generated adapter).

Bound to no engine it opens a kernel, or a host function that launches some, from a file; bound to one it runs the
engine's operators. Either way calls are interpreted under a mode, and what was launched can then be compiled. It is
given arguments and never an expected value.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
from collections.abc import Generator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from triton.runtime.jit import KernelInterface

from .capability import examine
from .compile import COMPILE_SECONDS, compiled, pretending
from .devices import DEVICES
from .expressions import size
from .interpret import Interpretation, interpreting
from .observed import Place
from .rounding import Mode

#: What torch says of the device that code under test is to believe in.
_NAMES = {"cuda:80": "NVIDIA A100-SXM4-80GB", "cuda:90": "NVIDIA H100 80GB HBM3", "cuda:100": "NVIDIA B200"}

#: Modules of a file that belongs to no package lie here, so that none takes the place of an installed one.
LOOSE = "kernel_subject"


class Bench:
    """One subject at a time; `engine` has the methods of a target."""

    def __init__(self, engine: Any = None) -> None:
        self.engine = engine
        self._subject: Any = None
        self._pretend = ""
        self._seen: Interpretation | None = None
        self._session_mode: Mode = "truncation"
        self._launched: set[str] = set()
        torch.set_num_threads(1)

    def capability(self) -> dict[str, Any]:
        """Whether anything may be asked here."""
        return asdict(examine())

    def open(self, module: str, name: str, pretend: str = "") -> str:
        """Import the subject: `kernel` or `function`. `pretend` is the device that it finds when it looks for one."""
        loose = Path(__file__).resolve().parent.parent / LOOSE
        if loose.is_dir():
            sys.path.append(str(loose))
        self._pretend = pretend
        with _believing(pretend):
            found: Any = importlib.import_module(module)
            for part in name.split("."):
                found = getattr(found, part)
        self._subject = found
        return "kernel" if isinstance(found, KernelInterface) else "function"

    def run(
        self, case: dict[str, Any], arrays: dict[str, np.ndarray], mode: Mode, exact_at: list[list[Any]]
    ) -> dict[str, Any]:
        """Interpret one call; returns `outputs` by name and what was seen."""
        tensors = {name: _tensor(array, case["dtypes"].get(name)) for name, array in arrays.items()}
        arguments = {**tensors, **case["scalars"], **dict.fromkeys(case["none"]), **case["meta"]}
        with torch.inference_mode(), _believing(self._pretend), interpreting(mode, _places(exact_at)) as seen:
            if isinstance(self._subject, KernelInterface):
                grid = case["grid"]
                self._subject[lambda meta: tuple(size(part, {**arguments, **meta}) for part in grid)](**arguments)
                returned: tuple[Any, ...] = ()
            else:
                result = self._subject(**arguments)
                returned = tuple(result) if isinstance(result, (tuple, list)) else (result,)
        self._seen = seen
        named = dict(zip(case["returns"], returned, strict=False))
        outputs = {name: named.get(name, tensors.get(name)) for name in (*case["outputs"], *case["returns"])}
        missing = [name for name, value in outputs.items() if not isinstance(value, torch.Tensor)]
        if missing:
            raise TypeError(f"{', '.join(missing)} did not come back as a tensor")
        return {"outputs": {name: _array(value) for name, value in outputs.items()}, "seen": _told(seen)}

    def evaluate(self, module: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """Call a plain function of a file (a reference, a generator) with those of the arguments that it names.

        It gives an array, several, or a table of them.
        """
        self.open(module, name)
        wanted = inspect.signature(self._subject).parameters
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in wanted.values()):
            arguments = {name: value for name, value in arguments.items() if name in wanted}
        result = self._subject(**arguments)
        if isinstance(result, dict):
            return {str(key): np.asarray(value) for key, value in result.items()}
        parts = result if isinstance(result, (tuple, list)) else (result,)
        return {str(index): np.asarray(part) for index, part in enumerate(parts)}

    def interpreted(
        self, mode: Mode, method: str, arguments: list[Any], exact_at: list[list[Any]] | None = None
    ) -> dict[str, Any]:
        """A method of the engine with all its kernels interpreted: `result` and what was seen."""
        with interpreting(mode, _places(exact_at or [])) as seen:
            result = getattr(self.engine, method)(*arguments)
        self._seen = seen
        return {"result": result, "seen": _told(seen)}

    def interpret_sessions(self, mode: Mode) -> None:
        """The mode under which sessions that are started from now on are interpreted."""
        self._session_mode = mode

    def start_simulated(self, config: dict[str, Any]) -> Any:
        """The engine with all its ranks in this process, every kernel interpreted whenever it is asked for anything."""
        mode = self._session_mode
        with interpreting(mode):
            session = self.engine.start_simulated(config)
        return _InterpretedSession(session, mode, self._launched)

    def launched_in_sessions(self) -> list[str]:
        """Files of the kernels that sessions have launched so far."""
        return sorted(self._launched)

    def operator(
        self,
        operator: str,
        config: dict[str, Any],
        case: dict[str, Any],
        inputs: dict[str, np.ndarray],
        constants: list[str],
        mode: Mode,
        exact_at: list[list[Any]],
    ) -> dict[str, Any]:
        """Build and run the selected implementation of an operator once, interpreted: `outputs` and what was seen."""
        given = {name: array for name, array in inputs.items() if name not in constants}
        with interpreting(mode, _places(exact_at)) as seen:
            handle = self.engine.operator_open(operator, config, case, {name: inputs[name] for name in constants})
            outputs = self.engine.operator_run(handle, given)
        self._seen = seen
        return {"outputs": outputs, "seen": _told(seen)}

    def compile(self, devices: list[str], seconds: float = COMPILE_SECONDS) -> list[dict[str, Any]]:
        """Compile what the last call launched, once for each specialisation and device."""
        return [asdict(report) for report in compiled(self._seen.launches if self._seen else [], devices, seconds)]

    def __getattr__(self, name: str) -> Any:
        # What the bench itself does not know is asked of the engine.
        engine = self.__dict__.get("engine")
        if engine is None or name.startswith("_"):
            raise AttributeError(name)
        return getattr(engine, name)


class _InterpretedSession:
    """A session of the engine; `launched` collects the files of the kernels that its calls launch."""

    def __init__(self, session: Any, mode: Mode, launched: set[str]) -> None:
        self._session, self._mode, self._launched = session, mode, launched

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        method = getattr(self._session, name)

        def call(*arguments: Any, **options: Any) -> Any:
            with interpreting(self._mode) as seen:
                try:
                    return method(*arguments, **options)
                finally:
                    self._launched |= _files(seen)

        return call


@contextlib.contextmanager
def _believing(device: str) -> Generator[None]:
    """Triton and torch tell code under test that `device` is here, where one is named."""
    if not device:
        yield
        return
    arch = DEVICES[device].arch
    told = {
        "get_device_name": lambda *args: _NAMES[device],
        "get_device_capability": lambda *args: divmod(int(arch), 10),
        "current_device": lambda: 0,
    }
    before = {name: getattr(torch.cuda, name) for name in told}
    with pretending(DEVICES[device]):
        try:
            for name, function in told.items():
                setattr(torch.cuda, name, function)
            yield
        finally:
            for name, function in before.items():
                setattr(torch.cuda, name, function)


def _places(places: list[list[Any]]) -> frozenset[Place]:
    return frozenset((str(file), int(line)) for file, line in places)


def _told(seen: Interpretation) -> dict[str, Any]:
    return {
        "launches": [launch.kernel.__name__ for launch in seen.launches],
        "files": sorted(_files(seen)),
        "programs": seen.programs,
        "used": sorted(seen.used),
        "dots": [[*site, count] for site, count in seen.dots.items()],
    }


def _files(seen: Interpretation) -> set[str]:
    """The files that the launched kernels are written in."""
    return {launch.kernel.fn.__code__.co_filename for launch in seen.launches}


def _tensor(array: np.ndarray, dtype: str | None) -> torch.Tensor:
    """A tensor of its own memory."""
    tensor = torch.from_numpy(np.array(array))
    return tensor if dtype is None else tensor.to(getattr(torch, dtype))


def _array(tensor: torch.Tensor) -> np.ndarray:
    """Half-width values as float32, which holds them."""
    wide = tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor
    return np.ascontiguousarray(wide.detach().numpy())
