"""An explanation of a run, and the facts that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.utils.translation import gettext as _

from durable.core.records import EntryKind, Hold
from durable.core.summary import Summary, SummaryKind
from durable.inspection.activities import RunningStep
from durable.inspection.humanize import relative, span
from durable.inspection.payloads import redacted
from durable.inspection.undone import Undone
from durable.inspection.wording import LOCAL
from durable.models import Entry, Run
from durable.models.run import RunQuerySet

LATE: Final = timedelta(seconds=60)  # a due run that no worker has claimed for this long needs attention

#: The fact of a summary that is an error's text. A text without data may quote an error as well.
_QUOTED_ERROR: Final = {
    SummaryKind.TEXT: "text",
    SummaryKind.DIVERGED: "error",
    SummaryKind.MISTAKE: "error",
    SummaryKind.STOPPED_BY_MISTAKE: "error",
    SummaryKind.HANDLER_FAILED: "error",
    SummaryKind.COMPENSATION_STOPPED: "error",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """An explanation: `headline` is one sentence without a full stop, `detail` more facts and advice, or "".

    `needs_attention`: the run will not continue well without a person. `remedies` are verbs, the likeliest first.
    `location` is the entry that the explanation is about, or "". `withheld` are verbs that the run's state allows and
    that would only lead to the same end again. `command` is a shell command that tells more, or "".
    """

    headline: str
    detail: str = ""
    needs_attention: bool = False
    remedies: tuple[str, ...] = ()
    location: str = ""
    withheld: tuple[str, ...] = ()
    command: str = ""

    @property
    def text(self) -> str:
        """The headline and the detail, as sentences."""
        return " ".join(f"{each.rstrip('.')}." for each in (self.headline, self.detail) if each)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of an explanation; see `durable.inspection.explain_states.explain`."""

    run: Run
    now: datetime
    entries: Sequence[Entry]
    unreceived: int | None
    undone: Undone | None
    undone_by_code: int = 0
    failed_at: str = ""
    running: Sequence[RunningStep] = ()
    paused: Hold | None = None
    within: RunQuerySet | None = None
    place: str = ""

    @property
    def is_held(self) -> bool:
        return self.run.lease_expires_at is not None and self.run.lease_expires_at > self.now

    @property
    def is_late(self) -> bool:
        return self.run.wake_at is not None and not self.is_held and self.now - self.run.wake_at > LATE

    @property
    def is_due(self) -> bool:
        return self.run.wake_at is not None and self.run.wake_at <= self.now

    @property
    def summary(self) -> Summary:
        """The row's summary in the active language. If it quotes an error, the error is redacted."""
        summary = Summary.load(self.run.summary).told_in(LOCAL)
        if self.within is not None:
            summary = summary.without_others
        quoted = _QUOTED_ERROR.get(summary.kind)
        if quoted is None or not summary:
            return summary
        return summary.with_facts(**{quoted: str(redacted(self.run.workflow, "error", summary.facts[quoted]))})

    @property
    def quoted_error(self) -> str:
        """The error that the row's summary quotes; of a text without data the text."""
        summary = self.summary
        return str(summary.facts.get("error", summary))

    def open(self, *statuses: str) -> Entry | None:
        """Return the newest open step with one of these statuses."""
        steps = [each for each in self.entries if each.kind == EntryKind.STEP and each.metadata.status in statuses]
        return steps[-1] if steps else None

    def since(self, then: datetime) -> str:
        """Return how long ago `then` was: "3 h 5 m"."""
        return span((self.now - then).total_seconds())

    @property
    def ended(self) -> str:
        """When the run ended and how long it took: "2 m ago, after 3 h"; "" if it has not ended."""
        finished, created = self.run.finished_at, self.run.created_at
        if finished is None:
            return ""
        when, took = relative(finished, self.now), span((finished - created).total_seconds())
        return _("%(when)s, after %(took)s") % {"when": when, "took": took}


def capitalized(text: str) -> str:
    """Return `text` with a capital letter first; the other letters stay as they are."""
    return text[:1].upper() + text[1:]
