"""Results of the replay of histories: findings with their kinds, the verdict on one run, and the report of many.

Plain data, which can be sent between processes.

Owns the grouping: findings with the same workflow, place and cause are a group, and so are equal decisions.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final

from durable.core.causes import pattern_of
from durable.core.location import display_location, general_location


class FindingKind(StrEnum):
    """The reason why a run could not continue with this process's code."""

    ADDED = "added"
    REMOVED = "removed"
    SKIPPED = "skipped"
    KIND = "kind"
    CHANGED = "changed"
    USED_TWICE = "used_twice"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    UNKNOWN_VERSION = "unknown_version"
    SIGNATURE = "signature"
    VALUE = "value"
    EXCEPTION = "exception"
    EFFECT = "effect"
    HANDLER = "handler"
    RULE = "rule"
    FORMAT = "format"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A fault of one run, and what to do about it.

    `location` is "" for the workflow's own code or input. `history` says what the history has there and `code` what the
    code does. `mend` is a sentence, and `add` has the lines of code that it refers to.
    """

    run_id: str
    workflow: str
    state: str
    kind: FindingKind
    location: str
    history: str
    code: str
    mend: str
    add: tuple[str, ...] = ()

    @property
    def problem(self) -> str:
        """The history's operation and the code's, as one sentence."""
        return self.problem_at(self.location)

    def problem_at(self, location: str) -> str:
        """Return the sentence with another location, for example with "~" for the number of each iteration."""
        where = f'at "{display_location(location)}" ' if location else ""
        return f"{where}the history has {self.history}, the code {self.code}"

    def __str__(self) -> str:
        return f"{self.run_id} ({self.workflow}, {self.state}): {self.problem}; {self.mend}"

    def as_data(self) -> dict[str, Any]:
        """Return the finding as values of JSON."""
        return {**asdict(self), "kind": str(self.kind), "add": list(self.add), "message": str(self)}


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision of the code that differs from the record: the first operation that differs, as words.

    `place` is its location with "~" for the number of an iteration.
    """

    workflow: str
    place: str
    does: str
    instead_of: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of the replay of one run.

    `operations` counts those that the code has come to. `is_whole`: the code has ended, so no operation was left
    unanswered. `decision` is set if it was requested and the code decides differently from the record. `unchecked` says
    why the run could not be checked, or is "".
    """

    run_id: str
    workflow: str
    state: str
    finding: Finding | None = None
    decision: Decision | None = None
    operations: int = 0
    is_whole: bool = False
    unchecked: str = ""


_SAMPLES: Final = 5  # ids of runs to name in a line

_Cause = tuple[str, ...]


@dataclass(slots=True)
class Group:
    """Runs of one workflow with one finding in common. `first` is the verdict on the first of them."""

    first: Verdict
    runs: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        finding, first = self.first.finding, self.first
        if len(self.runs) == 1:
            who = f"{first.run_id} ({first.workflow}, {first.state})"
        else:
            who = f"{len(self.runs):,} runs of {first.workflow} ({_some(self.runs)})"
        if finding is None:
            return f"{who}: not checked: {first.unchecked}"
        place = finding.location if len(self.runs) == 1 else general_location(finding.location)
        return f"{who}: {finding.problem_at(place)}; {finding.mend}"

    def as_data(self) -> dict[str, Any]:
        """Return the group as values of JSON, with the ids of all its runs."""
        finding = self.first.finding
        found = {} if finding is None else finding.as_data()
        return {
            "workflow": self.first.workflow,
            "kind": found.get("kind", "unchecked"),
            "place": general_location(found.get("location", "")),
            "message": str(self),
            "count": len(self.runs),
            "runs": self.runs,
        }


@dataclass(slots=True)
class Report:
    """The verdicts so far. `gone` counts runs that were deleted before their turn, `whole` those whose code has ended.

    `is_complete`: no run is left to check.
    """

    checked: int = 0
    whole: int = 0
    operations: int = 0
    gone: int = 0
    is_complete: bool = False
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[Verdict] = field(default_factory=list)
    decisions: dict[Decision, list[str]] = field(default_factory=dict)
    by_workflow: Counter[str] = field(default_factory=Counter)
    _groups: dict[_Cause, Group] = field(default_factory=dict)

    def add(self, verdict: Verdict | None) -> None:
        """Count a verdict; None for a run that is gone."""
        if verdict is None:
            self.gone += 1
            return
        if verdict.unchecked or (verdict.finding is not None and verdict.decision is None):
            self._groups.setdefault(_cause(verdict), Group(verdict)).runs.append(verdict.run_id)
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
            self.decisions.setdefault(decision, []).append(verdict.run_id)

    @property
    def groups(self) -> list[Group]:
        """Return the findings and the unchecked runs, grouped, the most frequent first.

        Findings already reported as a decision are omitted.
        """
        return sorted(self._groups.values(), key=lambda each: -len(each.runs))

    @property
    def _most_common(self) -> list[tuple[Decision, list[str]]]:
        return sorted(self.decisions.items(), key=lambda each: -len(each[1]))

    def sentences(self) -> list[str]:
        """Return a line for each group, then one for each decision that differs, the most frequent first."""
        return [*map(str, self.groups), *self._decisions()]

    def _decisions(self) -> list[str]:
        return [
            f"in {len(runs):,} of {self.by_workflow[each.workflow]:,} runs of {each.workflow} the new code would have "
            f"{each.does} instead of {each.instead_of}: {_some(runs)}"
            for each, runs in self._most_common
        ]

    def as_data(self) -> dict[str, Any]:
        """Return the report as values of JSON."""
        return {
            "is_complete": self.is_complete,
            "checked": self.checked,
            "to_their_end": self.whole,
            "operations": self.operations,
            "gone": self.gone,
            "findings": [each.as_data() for each in self.findings],
            "groups": [each.as_data() for each in self.groups],
            "unchecked": [
                {"run_id": each.run_id, "workflow": each.workflow, "why": each.unchecked} for each in self.unchecked
            ],
            "decisions": [
                {**asdict(each), "count": len(runs), "of": self.by_workflow[each.workflow], "runs": runs}
                for each, runs in self._most_common
            ],
        }


def _cause(verdict: Verdict) -> _Cause:
    """Return the key shared by equal verdicts: without the run, its state, and numbers of iterations."""
    finding = verdict.finding
    if finding is None:
        return (verdict.workflow, pattern_of(verdict.unchecked))
    code = pattern_of(finding.code) if finding.kind == FindingKind.EXCEPTION else finding.code
    return (verdict.workflow, finding.kind, general_location(finding.location), finding.history, code, finding.mend)


def _some(run_ids: list[str]) -> str:
    more = ", ..." if len(run_ids) > _SAMPLES else ""
    return ", ".join(run_ids[:_SAMPLES]) + more
