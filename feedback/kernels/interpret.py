"""Runs `@triton.jit` kernels on the CPU with the rounding of the hardware (worker side).

`interpreting(mode)` routes every launch and every call of a jitted function to Triton's interpreter, with a builder
that rounds as hardware does (the stock one ignores `input_precision`, computes bfloat16 on bit patterns and truncates
conversions). Host code runs unmodified. On exit everything that was patched is as before, so that the same kernels can
be compiled in the same process; the environment variable `TRITON_INTERPRET`, with which they could not, is never set.

An operation whose rounding is not modelled raises `Unfaithful`: no number is better than a wrong one.

Not to be nested, and to be entered by one thread: both would patch the same module. Inside, several threads may launch:
one launch at a time is run. Kernels have to lie in files.
"""

from __future__ import annotations

import ast
import contextlib
import sys
import threading
import types
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import triton

# Its tables hold functions of the language: imported while those are patched, it could never compile again.
import triton.compiler.code_generator
import triton.language as tl
from triton import knobs
from triton.backends.amd.compiler import HIPOptions
from triton.backends.nvidia.compiler import CUDAOptions
from triton.runtime import interpreter
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from .builder import FaithfulBuilder, Unfaithful
from .observed import Interpretation, Launch, Place
from .rounding import Mode

__all__ = ["Interpretation", "Unfaithful", "interpreting"]

#: Keyword arguments of a launch that are no parameters of the kernel.
_OPTIONS = frozenset(CUDAOptions.__dataclass_fields__) | frozenset(HIPOptions.__dataclass_fields__)

_ABSENT = object()


class _Active:
    now: Interpretation | None = None


@contextlib.contextmanager
def interpreting(mode: Mode = "truncation", exact_at: frozenset[Place] = frozenset()) -> Generator[Interpretation]:
    """Interpret all launches inside; products at the `exact_at` places (file, line) are computed in float64.

    `mode` says what happens to float32 operands of tf32 products. Raises `RuntimeError` when one is active already.
    """
    if _Active.now is not None:
        raise RuntimeError("an interpretation is active already: they cannot be nested")
    seen = Interpretation(mode)
    with contextlib.ExitStack() as undo:
        _Active.now = seen
        undo.callback(setattr, _Active, "now", None)
        _patch(undo, seen, FaithfulBuilder(mode, seen, exact_at))
        yield seen


def _patch(undo: contextlib.ExitStack, seen: Interpretation, builder: FaithfulBuilder) -> None:
    rewritten: dict[int, Callable[..., Any]] = {}
    one_at_a_time = threading.Lock()  # the builder holds the place in the grid for all threads

    def function(jitted: JITFunction) -> Callable[..., Any]:
        """The Python function of a kernel, made once an interpretation: what its module's names mean may change."""
        if id(jitted) not in rewritten:
            rewritten[id(jitted)] = _rewritten(jitted)
        return rewritten[id(jitted)]

    def call(jitted: JITFunction, *args: Any, **kwargs: Any) -> Any:
        return function(jitted)(*args, **kwargs)

    def run(jitted: JITFunction, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if warmup:
            raise RuntimeError("nothing can be compiled while kernels are interpreted: leave the interpretation first")
        with one_at_a_time:
            _launch(jitted, function(jitted), args, kwargs, grid, builder, seen)

    def put(owner: Any, name: str, value: Any) -> None:
        undo.callback(setattr, owner, name, vars(owner)[name])
        setattr(owner, name, value)

    _patch_language(undo)
    put(interpreter, "interpreter_builder", builder)
    put(interpreter.interpreter_semantic, "builder", builder)
    put(JITFunction, "run", run)
    put(JITFunction, "__call__", call)
    put(Autotuner, "run", _first_config)
    put(interpreter.ReduceScanOpInterface, "apply", _checked_apply(interpreter.ReduceScanOpInterface.apply))
    put(triton, "jit", _jit_as_ever(triton.jit))
    # Past the knob's descriptor, which would write the environment variable.
    undo.callback(_put_knob, _get_knob())
    _put_knob(True)


def _get_knob() -> Any:
    return knobs.runtime.__dict__.get("interpret", _ABSENT)


def _put_knob(value: Any) -> None:
    if value is _ABSENT:
        knobs.runtime.__dict__.pop("interpret", None)
    else:
        knobs.runtime.__dict__["interpret"] = value


def _patch_language(undo: contextlib.ExitStack) -> None:
    """`triton.language` patched to numpy once, not around every launch and every call as the stock interpreter does.

    The stock scope puts back what `getattr` found, which leaves inherited members behind as a class's own; here a name
    that a class or module did not hold itself is gone afterwards.
    """
    owners = (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.condition, tl.core.tensor_descriptor_base)
    before = {id(owner): dict(vars(owner)) for owner in owners}
    everything = types.FunctionType((lambda: None).__code__, {"tl": tl, "core": tl.core})
    scope = interpreter._patch_lang(everything)
    for owner in (tl, tl.core):
        scope.set_attr(owner, "range", _loop_range)
    changed = {(owner, name): before[id(owner)].get(name, _ABSENT) for owner, name, _ in scope._changes}
    undo.callback(_restore_copies, set(sys.modules), {id(vars(o)[name]): was for (o, name), was in changed.items()})
    for (owner, name), was in changed.items():
        undo.callback(_restore, owner, name, was)


def _restore(owner: Any, name: str, value: Any) -> None:
    if value is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, value)


def _restore_copies(known: set[str], originals: dict[int, Any]) -> None:
    """Modules imported meanwhile may have taken a patched function by name (`from triton.language import ...`)."""
    for module in [module for name, module in list(sys.modules.items()) if name not in known]:
        for name, value in list(getattr(module, "__dict__", {}).items()):
            was = originals.get(id(value), _ABSENT)
            if was is not _ABSENT:
                setattr(module, name, was)


class _Index(int):
    """A loop variable: a Python integer that kernels may use as the int32 scalar that it is on a GPU."""

    @property
    def dtype(self) -> Any:
        return tl.int32

    def to(self, dtype: Any, *args: Any, **kwargs: Any) -> Any:
        return interpreter.interpreter_semantic.to_tensor(int(self), False).to(dtype, *args, **kwargs)


def _loop_range(first: Any, second: Any = None, step: Any = None, **options: Any) -> Iterator[_Index]:
    """`range` and `tl.range` of a kernel; bounds may be tensors, options are hints to the compiler."""
    start, stop = (0, first) if second is None else (first, second)
    for index in range(int(_plain(start)), int(_plain(stop)), 1 if step is None else int(_plain(step))):
        yield _Index(index)


def _plain(value: Any) -> Any:
    """The value in a constexpr or in a tensor of one element."""
    if isinstance(value, tl.constexpr):
        value = value.value
    return value.handle.data.item() if isinstance(value, tl.tensor) else value


def _rewritten(jitted: JITFunction) -> Callable[..., Any]:
    """A kernel as plain Python in a copy of its module's names: the stock interpreter adds its own to the module."""
    if jitted.is_gluon():
        raise Unfaithful(f"{jitted.__name__} is a Gluon kernel, which the interpreter does not know")
    tree = interpreter.ASTTransformer().visit(ast.parse(jitted.src))
    ast.fix_missing_locations(tree)
    ast.increment_lineno(tree, jitted.def_file_line_number - 1)
    needed = {
        "interpreter_semantic": interpreter.interpreter_semantic,
        "_InterpreterComparison": interpreter._InterpreterComparison,
        "range": _loop_range,
    }
    names: dict[str, Any] = {**jitted.get_capture_scope(), **needed}
    exec(compile(tree, jitted.file_name, "exec"), names)
    return names[jitted.fn.__name__]


def _launch(
    jitted: JITFunction,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    grid: Any,
    builder: FaithfulBuilder,
    seen: Interpretation,
) -> None:
    """All programs of a grid, one after another, on the very memory of the arguments."""
    for hook in jitted.pre_run_hooks:
        hook(*args, **kwargs)
    unknown = kwargs.keys() - set(jitted.arg_names) - _OPTIONS
    if unknown:
        raise KeyError(f"{jitted.__name__} has no parameter {', '.join(sorted(unknown))}")
    given = {name: value for name, value in kwargs.items() if name in jitted.arg_names}
    bound = jitted.signature.bind(*args, **given)
    bound.apply_defaults()
    seen.launches.append(Launch(jitted, args, dict(kwargs), grid))
    sizes = grid(dict(bound.arguments)) if callable(grid) else grid
    shape = [int(_plain(size)) for size in (*sizes, 1, 1)][:3]
    constants = {parameter.name for parameter in jitted.params if parameter.is_constexpr}
    values = {
        name: (value.value if isinstance(value, tl.constexpr) else value)
        if name in constants
        else interpreter._implicit_cvt(_on_cpu(name, value))
        for name, value in bound.arguments.items()
    }
    builder.set_grid_dim(*shape)
    with np.errstate(all="ignore"):
        for x, y, z in np.ndindex(*shape):
            builder.set_grid_idx(x, y, z)
            seen.programs += 1
            function(**values)


def _on_cpu(name: str, value: Any) -> Any:
    device = getattr(value, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        raise ValueError(f"argument {name} is on {device}: the interpreter works on the memory of the CPU")
    return value


def _first_config(tuner: Autotuner, *args: Any, **kwargs: Any) -> Any:
    """A launch of an autotuned kernel with the first configuration that is not pruned: nothing can be timed here."""
    tuner.nargs = dict(zip(tuner.arg_names, args, strict=False))
    try:
        config = tuner.prune_configs(kwargs)[0]
        chosen = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**tuner.nargs, **kwargs, **chosen})
        return tuner.fn.run(*args, **kwargs, **chosen)
    finally:
        tuner.nargs = None


def _checked_apply(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Reductions and scans; the interpreter's fast ones are numpy's, which knows no bfloat16."""

    def checked(self: Any, value: Any) -> Any:
        parts = value if isinstance(value, tuple) else (value,)
        narrow = [part.dtype.scalar for part in parts if part.dtype.scalar.is_bf16() or part.dtype.scalar.is_fp8()]
        if narrow:
            raise Unfaithful(f"a reduction or scan of {narrow[0]}: convert to float32 before it")
        return apply(self, value)

    return checked


def _jit_as_ever(jit: Callable[..., Any]) -> Callable[..., Any]:
    """`triton.jit` for modules that are imported meanwhile: kernels that can be compiled afterwards."""

    def decorated(decorate: Callable[[Any], Any], function: Any) -> Any:
        had = _get_knob()
        _put_knob(_ABSENT)
        try:
            return decorate(function)
        finally:
            _put_knob(had)

    def as_ever(fn: Any = None, **options: Any) -> Any:
        if fn is not None:
            return decorated(lambda function: jit(function, **options), fn)
        return lambda function: decorated(jit(**options), function)

    return as_ever
