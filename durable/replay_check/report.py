"""What a check of many runs has come to: counts, findings, and the decisions that differ, grouped."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from durable.replay_check.findings import Decision, Finding, Verdict

__all__ = ["Report"]

_SAMPLES: Final = 5  # ids of runs that a group of decisions has


@dataclass(slots=True)
class Report:
    """The verdicts so far. `gone` counts runs that were deleted before their turn, `whole` those whose code has ended."""

    checked: int = 0
    whole: int = 0
    operations: int = 0
    gone: int = 0
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[Verdict] = field(default_factory=list)
    decisions: Counter[Decision] = field(default_factory=Counter)
    samples: dict[Decision, list[str]] = field(default_factory=dict)
    by_workflow: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict | None) -> None:
        """Count a verdict; None for a run that is gone."""
        if verdict is None:
            self.gone += 1
            return
        if verdict.unchecked:
            self.unchecked.append(verdict)
            return
        self.checked += 1
        self.whole += verdict.is_whole
        self.operations += verdict.operations
        self.by_workflow[verdict.workflow] += 1
        if verdict.finding is not None:
            self.findings.append(verdict.finding)
        if (decision := verdict.decision) is not None:
            self.decisions[decision] += 1
            samples = self.samples.setdefault(decision, [])
            if len(samples) < _SAMPLES:
                samples.append(verdict.run_id)

    def sentences(self) -> list[str]:
        """Return the decisions that differ, the most frequent first."""
        return [
            f"in {count:,} of {self.by_workflow[each.workflow]:,} runs of {each.workflow} the new code would have "
            f"{each.does} instead of {each.instead_of}: {', '.join(self.samples[each])}"
            for each, count in self.decisions.most_common()
        ]

    def as_data(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        return {
            "checked": self.checked,
            "to_their_end": self.whole,
            "operations": self.operations,
            "gone": self.gone,
            "findings": [each.as_data() for each in self.findings],
            "unchecked": [
                {"run_id": each.run_id, "workflow": each.workflow, "why": each.unchecked} for each in self.unchecked
            ],
            "decisions": [
                {**asdict(each), "count": count, "of": self.by_workflow[each.workflow], "runs": self.samples[each]}
                for each, count in self.decisions.most_common()
            ],
        }
