"""The failed runs of a selection by cause, for the confirmation of a bulk."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

from django.db.models import Count, QuerySet
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.records import RunState
from durable.inspection.capped_counts import tally
from durable.models import Cause, Failure, Run

_MOST: Final = 10_000  # failed runs whose causes are counted
_NAMED: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseOfBulk:
    """A cause, and the number of selected runs that are failed because of it.

    The last one may be the rest: `fingerprint` is "" then, and `place` says so.
    """

    fingerprint: str
    place: str
    error_type: str
    number: int


@runtime_checkable
class WithFailures(Protocol):
    """A selection that can tell its failed runs."""

    def failed(self) -> Sequence[tuple[QuerySet[Any], bool]]:
        """Return the selected runs that are failed, as disjoint querysets, or their failures instead.

        With each is said whether it is a window: more runs may be behind it.
        """


def causes_among(selection: Any, states: frozenset[str]) -> list[CauseOfBulk]:
    """Return the causes of the selected runs if failed ones are among `states`, the most frequent first.

    Counts up to `_MOST` runs. One statement for each index that the selection follows, and one for the causes.
    """
    if RunState.FAILED not in states or not isinstance(selection, WithFailures):
        return []
    numbers: Counter[int] = Counter()
    found = [rows for rows, _ in selection.failed()]
    for of_cause in tally([rows for rows in found if rows.model is Failure], "cause_id", _MOST):
        numbers.update(of_cause)
    for runs in (rows for rows in found if rows.model is Run):
        failures = Failure.objects.using(conf.DATABASE).filter(is_open=True, run__in=runs.values("pk")[:_MOST])
        numbers.update(dict(failures.order_by().values_list("cause").annotate(Count("pk"))))
    named = numbers.most_common(_NAMED)
    causes = Cause.objects.using(conf.DATABASE).in_bulk([key for key, _ in named])
    rows = [
        CauseOfBulk(
            fingerprint=causes[key].fingerprint,
            place=causes[key].place,
            error_type=causes[key].error_type,
            number=number,
        )
        for key, number in named
        if key in causes
    ]
    rest = len(numbers) - len(named)
    if rest:
        others = numbers.total() - sum(number for _, number in named)
        rows.append(
            CauseOfBulk(
                fingerprint="",
                place=ngettext("%(number)d other cause", "%(number)d other causes", rest) % {"number": rest},
                error_type="",
                number=others,
            )
        )
    return rows
