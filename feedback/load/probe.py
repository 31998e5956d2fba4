"""End to end: does the candidate serve the workload faster than the base by the margin, with right outputs?"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from feedback.judging import judge
from feedback.load.conclusion import LoadSettings
from feedback.load.examination import OFF_TURN_SHARE, Examination
from feedback.load.verify import Bounds
from feedback.probe import Context, Question
from feedback.statistics import Plan
from feedback.verdict import Predicate, Verdict


@dataclass(frozen=True)
class LoadProbe:
    """Output throughput of the candidate >= margin x base, all outputs verified, the goal's serving limits met."""

    settings: LoadSettings = field(default_factory=LoadSettings)
    layer: str = "load"
    cost_prior: float = 40.0

    def predicate(self, question: Question) -> Predicate:
        settings = self.settings
        return Predicate(
            layer=self.layer,
            statement=(
                f"output throughput of the candidate is at least {settings.margin:g} x the base's on the workload "
                f"{question.workload.stem}, every timed output is right, and no serving limit is broken"
            ),
            parameters={
                "margin": settings.margin,
                "max_passes": settings.max_passes,
                "confidence": Plan(settings.margin, settings.max_passes).confidence,
                "repeats": settings.repeats,
                "bounds": asdict(Bounds()),
                "off_turn_share": OFF_TURN_SHARE,
                "fresh_base": settings.fresh_base,
                "unit_seconds": repr(settings.policy.unit_seconds),
                "seed": question.seed,
                "changes_numerics": question.changes_numerics,
                "limits": dict(question.limits),
                "touched_share": settings.touched_share,
                "open_loop_rate": settings.open_loop_rate,
            },
        )

    def run(self, question: Question, context: Context) -> Verdict:
        return judge(
            self.predicate(question), question, context, lambda bench: Examination(bench, self.settings).finding()
        )


PROBE = LoadProbe()
