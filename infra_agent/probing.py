"""Asking probes by hand: from what a person typed to a question, to verdicts, to an exit code."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from feedback.errors import UserError
from feedback.verdict import Status
from infra_agent import tomltext
from infra_agent.paths import home
from infra_agent.start import nested
from infra_agent.targetfiles import root_of
from infra_agent.wording import did_you_mean

if TYPE_CHECKING:
    from feedback.oracle import Oracle
    from feedback.probe import Probe, Question
    from feedback.target import Description
    from feedback.workers.pool import WorkerPool

#: The profile that the oracle runs: the plainest form that a target ships.
REFERENCE = "sequential"

#: Launch parameters that the oracle takes over: which model it is, and how long a sequence may be.
SHARED = ("model", "max_model_len")

CONFIRMED, REFUTED, USAGE, UNDECIDED = 0, 1, 2, 3


@dataclass(frozen=True)
class Asked:
    """What was typed. `settings` are `key=value`, `limits` are `name=number`; None is the target's own. `planned`: the
    ranks were given, so that a plan over them has to exist.
    """

    adapter: str = "target_engine.adapter"
    target: Path | None = None
    base: Path | None = None
    config: str | None = None
    base_config: str | None = None
    settings: tuple[str, ...] = ()
    workload: str | None = None
    operators: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    changes_numerics: bool = False
    seed: int = 0
    planned: bool = False


def ask(names: Sequence[str], asked: Asked, *, as_json: bool, write: Callable[[str], Any]) -> int:
    """Run the named probes in order and write a line for each; returns the exit code. `UserError` for bad input."""
    from feedback.evidence import EvidenceStore
    from feedback.oracle import OracleFailure
    from feedback.probe import Context, discover
    from feedback.workers.failures import WorkerFailure
    from feedback.workers.pool import WorkerPool

    probes = _named(names, discover())
    installed = root_of(asked.adapter)
    top = asked.adapter.split(".")[0]
    for folder in filter(None, (asked.target, asked.base)):
        if not any((folder / name).exists() for name in (top, f"{top}.py")):
            raise UserError(f"{folder} is no root of the target: it holds no {top}; name the folder that holds {top}")
    with WorkerPool(asked.adapter) as pool:
        try:
            question = question_for(asked, installed, pool)
        except (WorkerFailure, OracleFailure) as error:
            raise UserError(f"the target of {asked.adapter} does not run as it is installed: {error}") from error
        context = Context(pool, EvidenceStore(home() / "probes"))
        statuses = []
        for probe in probes:
            verdict = probe.run(question, context)
            write(verdict.to_json() if as_json else verdict.line())
            statuses.append(verdict.status)
    return exit_code(statuses)


def exit_code(statuses: Iterable[Status]) -> int:
    """1 when any is refuted, else 3 when any is undecided, else 2 when any is unsupported, else 0."""
    seen = set(statuses)
    if Status.REFUTED in seen:
        return REFUTED
    if seen & {Status.INCONCLUSIVE, Status.INVALID}:
        return UNDECIDED
    return USAGE if Status.UNSUPPORTED in seen else CONFIRMED


def question_for(asked: Asked, installed: Path, pool: WorkerPool) -> Question:
    """The question, with the installed target as what is trusted."""
    from feedback.oracle import Oracle
    from feedback.probe import Question, Tree
    from feedback.static.scope import changed_files

    target, base = (asked.target or installed).resolve(), (asked.base or installed).resolve()
    plain = Oracle.of(pool, Tree(installed, "installed", {}))
    description = plain.description()
    before = launch_config(asked.config, target, installed, description)
    config = overridden(before, asked.settings)
    own = before if asked.base_config is None else launch_config(asked.base_config, base, installed, description)
    reference = {**_reference(installed, description), **{key: config[key] for key in SHARED if key in config}}
    plain.close()
    oracle = Oracle.of(pool, Tree(installed, "installed", reference))
    if asked.planned:
        _planned(oracle, config)
    changed = changed_files(base, target, oracle.entries(), ())
    launch = config != own
    return Question(
        hypothesis="by-hand",
        base=Tree(base, "base", own),
        candidate=Tree(target, "candidate", config),
        trusted=oracle.tree,
        adapter=asked.adapter,
        kind="bundle" if launch and changed else "launch" if launch else "code",
        changed=changed,
        workload=_workload(asked.workload, installed, description),
        seed=asked.seed,
        operators=_operators(asked.operators, config, oracle),
        changes_numerics=asked.changes_numerics,
        limits=dict(_limit(text) for text in asked.limits),
        scope=asked.scope,
    )


def _planned(oracle: Oracle, config: dict[str, Any]) -> None:
    """Refuse ranks that the model cannot run over: `UserError` with the reason."""
    from feedback.target import Unsupported

    try:
        problems = oracle.plan(config).problems
    except Unsupported as error:
        raise UserError(f"--tp, --cp: {error}") from error
    if problems:
        raise UserError(f"cannot run over these ranks: {problems[0].parameter}: {problems[0].message}")


def launch_config(named: str | None, root: Path, installed: Path, description: Description) -> dict[str, Any]:
    """A TOML file, a profile beside the run's own (in this tree, else the installed one), or the run's own, if any."""
    own = PurePosixPath(description.profile_path)
    if named is None:
        file = root / own
        return tomltext.parse(tomltext.read(file), str(file)) if file.is_file() else {}
    places = [Path(named)]
    if "/" not in named:
        places += [tree / own.with_name(f"{named}.toml") for tree in (root, installed)]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        known = sorted(path.stem for path in (installed / own).parent.glob("*.toml"))
        hint = did_you_mean(named, known)
        raise UserError(f"--config {named}: no such file, and no profile of the target ({', '.join(known)}){hint}")
    return tomltext.parse(tomltext.read(file), str(file))


def overridden(config: dict[str, Any], settings: Sequence[str]) -> dict[str, Any]:
    """A launch configuration with `key=value` overrides: dotted keys reach into tables, values are TOML or text."""
    merged = dict(config)
    for setting in settings:
        key, separator, text = setting.partition("=")
        if not separator or not key.strip():
            raise UserError(f"--set {setting}: write it as key=value, for example --set max_batch=16")
        value: Any = text.strip()
        with suppress(tomllib.TOMLDecodeError):
            value = tomllib.loads(f"value = {text}")["value"]
        merged = _merged(merged, nested({key.strip(): value}))
    return merged


def _merged(config: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    out = dict(config)
    for key, value in change.items():
        inner = out.get(key)
        out[key] = _merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return out


def _reference(installed: Path, description: Description) -> dict[str, Any]:
    file = installed / PurePosixPath(description.profile_path).with_name(f"{REFERENCE}.toml")
    return tomltext.parse(tomltext.read(file), str(file)) if file.is_file() else {}


def _named(names: Sequence[str], known: dict[str, Probe]) -> list[Probe]:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UserError(f"there is no probe {name!r}; there are {', '.join(sorted(known))}{hint}")
    return [known[name] for name in names]


def _workload(named: str | None, installed: Path, description: Description) -> Path:
    refs = {ref.name: ref for ref in description.workloads}
    if named is None:
        first = next((ref for ref in description.workloads if not ref.held_out), None)
        if first is None:
            raise UserError("the target names no workload of its own: give one with --workload FILE")
        return installed / first.path
    if named in refs:
        return installed / refs[named].path
    if Path(named).is_file():
        return Path(named)
    raise UserError(f"--workload {named}: no such file, and no workload of the target ({', '.join(sorted(refs))})")


def _operators(named: tuple[str, ...], config: dict[str, Any], oracle: Oracle) -> tuple[str, ...]:
    if not named:
        return ()
    known = {info.name for info in oracle.operators(config)}
    for name in named:
        if name not in known:
            hint = did_you_mean(name, known)
            raise UserError(f"--operator {name}: the target has none; it has {', '.join(sorted(known))}{hint}")
    return named


def _limit(text: str) -> tuple[str, float]:
    name, _, number = text.partition("=")
    try:
        return name.strip(), float(number)
    except ValueError:
        raise UserError(f"--limit {text}: write it as name=number, for example --limit mean_kl=0.01") from None
