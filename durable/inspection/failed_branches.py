"""The branch of a join that made a run fail, if its failure came from one: that that failed first, by the clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from django.db.models import Max
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.fork_outcomes import innermost_failures, outcome_of
from durable.inspection.wording import display_location
from durable.models import Attempt, Run

_MOST: Final = 200  # failed branches that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedBranch:
    """A branch of the join or race at `fork`. `location` is that of the step in it that failed, "" for its own code.

    `is_first`: other branches have failed too, all of them later.
    """

    name: str
    fork: str
    location: str
    note: str
    is_first: bool

    @property
    def text(self) -> str:
        """The failed branch and their number: 'Branch "mail" of "ship" failed first (2 of 3 branches failed)'."""
        if self.is_first:
            text = _('Branch "%(name)s" of "%(fork)s" failed first (%(note)s)')
        else:
            text = _('Branch "%(name)s" of "%(fork)s" failed (%(note)s)')
        return text % {"name": self.name, "fork": display_location(self.fork), "note": self.note}


def first_failed_branch(run: Run) -> FailedBranch | None:
    """Return the branch with which a failed run began to fail; None for a run that failed in no join or race.

    A few statements for a failed run, none for any other. Branches without a failed step come last: when their code
    failed is not recorded.
    """
    if run.state != RunState.FAILED or not run.origins:
        return None
    outcome = outcome_of(run.id, run.origins[0])
    if outcome is None or not outcome.failed:
        return None
    origins = {name: each.origins[0] for name, each in list(outcome.failed.items())[:_MOST] if each.origins}
    innermost = innermost_failures(run.id, list(origins.values())) if origins else {}
    attempts = Attempt.objects.using(conf.DATABASE).filter(run=run, location__in=list(innermost.values())).order_by()
    ended = dict(attempts.values_list("location").annotate(at=Max("finished_at")))
    timed = {name: ended[innermost[origin]] for name, origin in origins.items() if innermost[origin] in ended}
    name = min(timed, key=timed.__getitem__, default=next(iter(outcome.failed)))
    return FailedBranch(
        name=name,
        fork=outcome.location,
        location=innermost.get(origins.get(name, ""), ""),
        note=outcome.note,
        is_first=name in timed and len(outcome.failed) > 1,
    )
