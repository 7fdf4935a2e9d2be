"""Results of the replay of a history: findings with their kinds, and the verdict on one run.

Plain data, which can be sent between processes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from durable.core.location import display_location


class FindingKind(StrEnum):
    """The reason why a run would not go on with the code at hand."""

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

    `location` is where, "" for the workflow's own code or input. `history` is what the history has there and `code`
    what the code does, as words. `mend` is a sentence, and `add` has the lines of code that it speaks of.
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

    `operations` counts those that the code has come to. `is_whole`: the code has ended, so that no operation was left
    unanswered. `decision` is there if it was asked for, and if the code decides something else than is recorded.
    `unchecked` says why the run could not be checked, "" for one that was.
    """

    run_id: str
    workflow: str
    state: str
    finding: Finding | None = None
    decision: Decision | None = None
    operations: int = 0
    is_whole: bool = False
    unchecked: str = ""
