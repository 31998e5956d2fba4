"""Asking the load question: engines, passes, verification. What the answers mean is decided in `conclusion`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from feedback.judging import Bench, Finding, failed
from feedback.load.ab import ArmFailed, Side
from feedback.load.arms import LiveArm, LiveArms, peak_bytes, start_arm
from feedback.load.collect import Misreport
from feedback.load.conclusion import LoadSettings, arm_figures, bounds_for, conclude
from feedback.load.disturbance import CpuMeter
from feedback.load.limits import OPEN
from feedback.load.metrics import RequestRecord
from feedback.load.openloop import poisson_arrivals, run_open_loop
from feedback.load.passes import BaseFailed, Salted, TooDisturbed, UsedPass, measure_noise_floor, quiet_pass, unit_rows
from feedback.load.verify import Bounds, Verification, verify
from feedback.load.workload import Workload
from feedback.statistics import DISTURBED_SHARE, Comparison, Decision, NoiseFloor, Pass, Plan
from feedback.target import Request
from feedback.verdict import Location, Status
from feedback.workers.failures import WorkerFailure

#: CPU time that an engine may use while the other is timed, per CPU time in its own turns.
OFF_TURN_SHARE = 0.05


class Wrong(Exception):
    """The candidate is refuted by what it delivered; carries the finding."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(finding.observed)
        self.finding = finding


@dataclass
class Examination:
    """One question, from start to finding. Effects stand here; what they mean is decided by pure functions."""

    bench: Bench
    settings: LoadSettings
    used: list[UsedPass] = field(default_factory=list)
    checked: list[Verification] = field(default_factory=list)
    memory: dict[str, float] = field(default_factory=dict)
    open: dict[Side, dict[str, float]] = field(default_factory=dict)
    disturbed: float = 0.0
    rebuilt: LiveArm | None = None
    data: dict[str, Any] = field(default_factory=dict)

    def finding(self) -> Finding:
        """Run it; a failed base or a noisy machine makes it invalid."""
        question, self.data["settings"] = self.bench.question, asdict(self.settings)
        workload = Workload.read(question.workload)
        self.data["workload"] = {"name": workload.name, "digest": workload.digest}
        arms = LiveArms.of(self.bench.context.workers)
        try:
            floor = self._floor(arms, workload)
            comparison, decision = self._passes(arms, workload, floor)
        except Wrong as wrong:
            return replace(wrong.finding, data=self._data())
        except TooDisturbed as error:
            self.data["unusable_units"] = unit_rows(error.thrown_away)
            return Finding(
                Status.INVALID, str(error), gaps=("timing",), next="load, on a quieter machine", data=self._data()
            )
        except BaseFailed as error:
            arms.drop_base()
            return Finding(
                Status.INVALID, str(error), gaps=("nothing was learnt about the candidate",), data=self._data()
            )
        finally:
            if self.rebuilt is not None:
                self.rebuilt.worker.close()
        finding = conclude(question, self.settings, workload.name, comparison, decision, self._figures(), self.checked)
        gaps = [*finding.gaps]
        if blind := CpuMeter(()).blind:
            gaps.append(blind)
        if self.disturbed > DISTURBED_SHARE:
            gaps.append(f"other processes took {self.disturbed:.0%} of the CPU during the open loop")
        return replace(finding, gaps=tuple(gaps), data=self._data())

    def _floor(self, arms: LiveArms, workload: Workload) -> NoiseFloor:
        context, question = self.bench.context, self.bench.question
        if context.noise is None:
            context.noise, used = measure_noise_floor(
                arms, question.base, workload, self.bench.oracle.tokenize, self.settings.floor, question.seed
            )
            self.data["floor_units"] = unit_rows([item.run for item in used])
        self.data["floor"] = asdict(context.noise)
        return context.noise

    def _passes(self, arms: LiveArms, workload: Workload, floor: NoiseFloor) -> tuple[Comparison, Decision]:
        """Pass after pass until the plan says stop."""
        question, settings = self.bench.question, self.settings
        plan = Plan(settings.margin, settings.max_passes)
        name = (question.seed, question.candidate.commit, arms.ticket())
        salted = Salted(workload, self.bench.oracle.tokenize, *name)
        bounds = bounds_for(question, self.bench.oracle.description())
        warm = salted.requests()
        candidate = self._candidate(lambda: start_arm(self.bench.candidate, question.candidate, warm))
        if settings.fresh_base:
            arms.drop_base()
        timings: list[Pass] = []
        while True:
            base = self._base(arms, warm)
            used = self._one_pass(base, candidate, salted)
            self.used.append(used)
            timings.append(used.run.timing)
            self._check(used, bounds)
            comparison, decision = plan.look(timings, floor)
            self.data["comparison"] = asdict(comparison)
            if decision != "continue":
                if settings.open_loop_rate is not None:
                    self._open_loop(base, candidate, workload, salted, bounds)
                self._close_rebuilt()
                return comparison, decision
            arms.drop_base()
            self._close_rebuilt()
            candidate = self._candidate(lambda: arms.open(question.candidate, "candidate", warm))
            self.rebuilt = candidate

    def _close_rebuilt(self) -> None:
        """End a rebuilt candidate, once what it imported is known to be its tree's."""
        if self.rebuilt is not None:
            self.rebuilt.worker.imported()
            self.rebuilt.worker.close()
            self.rebuilt = None

    def _one_pass(self, base: LiveArm, candidate: LiveArm, salted: Salted) -> UsedPass:
        try:
            used = quiet_pass(base.arm, candidate.arm, salted, self.settings.policy, self.settings.repeats)
        except ArmFailed as error:
            if error.side == "base":
                raise BaseFailed(f"the base failed: {_line(error.cause)}") from error
            # The base is left with requests of a pass that nobody will finish.
            LiveArms.of(self.bench.context.workers).drop_base()
            raise Wrong(_failure(error.cause)) from error
        self.memory["peak_memory_bytes"] = max(self.memory.get("peak_memory_bytes", 0.0), peak_bytes(candidate.arm.pid))
        self.memory["base_peak_memory_bytes"] = peak_bytes(base.arm.pid)
        if used.run.base.off_turn_share > OFF_TURN_SHARE:
            share = used.run.base.off_turn_share
            raise BaseFailed(f"the base used {share:.0%} of its CPU time while the candidate was timed")
        return used

    def _open_loop(self, base: LiveArm, candidate: LiveArm, workload: Workload, salted: Salted, bounds: Bounds) -> None:
        """The workload as it arrives, candidate first; the same prompts and arrivals for both."""
        rate = self.settings.open_loop_rate
        timed = poisson_arrivals(workload, rate, self.bench.question.seed) if rate else workload
        arrivals = [row.arrival_s for row in timed.rows]
        requests = salted.requests()
        meter = CpuMeter((base.arm.pid, candidate.arm.pid))
        sides: tuple[tuple[Side, LiveArm], ...] = (("candidate", candidate), ("base", base))
        for side, live in sides:
            before = meter.read()
            try:
                run = run_open_loop(live.arm.session, requests, arrivals, prefix=f"open-{live.arm.label}-")
            except (WorkerFailure, Misreport) as error:
                if side == "base":
                    raise BaseFailed(f"the base failed in the open loop: {_line(error)}") from error
                raise Wrong(_failure(error)) from error
            self.disturbed = max(self.disturbed, meter.other_share(before, meter.read()))
            self.open[side] = {f"{OPEN}{name}": value for name, value in run.metrics().items()}
            if side == "candidate":
                self._verify(run.records, requests, bounds)

    def _candidate(self, start: Callable[[], LiveArm]) -> LiveArm:
        try:
            return start()
        except Misreport as error:
            raise Wrong(_failure(error)) from error

    def _base(self, arms: LiveArms, warm: Sequence[Request]) -> LiveArm:
        try:
            return arms.base(self.bench.question.base, warm)
        except (WorkerFailure, Misreport) as error:
            raise BaseFailed(f"the base does not start: {_line(error)}") from error

    def _check(self, used: UsedPass, bounds: Bounds) -> None:
        """Verify the outputs of a pass, and that the candidate rested when it was not its turn."""
        share = used.run.candidate.off_turn_share
        if share > OFF_TURN_SHARE:
            what = f"it used {share:.0%} of its CPU time while the base was timed: work outside its turn is not timed"
            raise Wrong(Finding(Status.REFUTED, what, at=(Location(phase="timing"),)))
        self._verify(used.run.candidate.records, used.requests, bounds)

    def _verify(self, records: Sequence[RequestRecord], requests: Sequence[Request], bounds: Bounds) -> None:
        """Have the oracle score the candidate's outputs."""
        oracle = self.bench.oracle
        checked = verify(records, requests, oracle.score, bounds, oracle.ends_after, oracle.vocabulary())
        self.checked.append(checked)
        if checked.wrong:
            first = checked.wrong[0]
            more = f" (and {len(checked.wrong) - 1} more requests)" if len(checked.wrong) > 1 else ""
            raise Wrong(
                Finding(
                    Status.REFUTED,
                    f"wrong output: {first.line()}{more}",
                    at=(Location(request=first.request, phase="decode" if first.position else "prefill"),),
                    next="operators",
                    metrics=checked.metrics(),
                )
            )

    def _figures(self) -> tuple[dict[str, float], dict[str, float]]:
        """Serving metrics of candidate and base over all passes, on each arm's own clock."""
        candidate = arm_figures([used.run.candidate for used in self.used])
        base = arm_figures([used.run.base for used in self.used])
        candidate["peak_memory_bytes"] = self.memory["peak_memory_bytes"]
        base["peak_memory_bytes"] = self.memory["base_peak_memory_bytes"]
        return candidate | self.open.get("candidate", {}), base | self.open.get("base", {})

    def _data(self) -> dict[str, Any]:
        """Everything for the evidence folder."""
        runs = [used.run for used in self.used]
        return {
            **self.data,
            "units": unit_rows(runs),
            "thrown_away_units": unit_rows([run for used in self.used for run in used.thrown_away]),
            "off_turn_shares": [[run.base.off_turn_share, run.candidate.off_turn_share] for run in runs],
            "counters": [[run.base.counters, run.candidate.counters] for run in runs],
            "instances": [run.timing.instances for run in runs],
            "outputs": [{record.id: list(record.token_ids) for record in run.candidate.records} for run in runs],
            "requests": [[request.model_dump(mode="json") for request in used.requests] for used in self.used],
            "wrong": [item.line() for checked in self.checked for item in checked.wrong],
        }


def _failure(cause: Exception) -> Finding:
    """The candidate failed or lied in a pass."""
    if isinstance(cause, WorkerFailure):
        return failed(cause)
    request = cause.request if isinstance(cause, Misreport) else None
    return Finding(
        Status.REFUTED,
        f"its reports cannot be true: {cause}",
        at=(Location(request=request, phase="decode"),),
        next="smoke",
    )


def _line(error: Exception) -> str:
    return error.line if isinstance(error, WorkerFailure) else str(error)
