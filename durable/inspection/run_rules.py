"""The runs that a request may see, where a project limits them: `API_RUNS` over REST, `ADMIN_RUNS` in the admin.

A surface has one rule, and queries it for the runs of each request. Errors of the project's function are not caught.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

from django.db.models import QuerySet
from django.utils.module_loading import import_string

from durable.conf import conf
from durable.inspection.reading import read_alias
from durable.models import Run
from durable.models.run import RunQuerySet

if TYPE_CHECKING:
    from durable.operations.people import Question


RowsT = TypeVar("RowsT", bound=QuerySet[Any])

_KEPT: Final = "_durable_runs"  # attribute of a request


@dataclass(frozen=True, slots=True)
class RunRule:
    """The rule that the setting of this name gives.

    The setting is the dotted path of a function, which takes a request and a queryset of runs. With `is_kept` it is
    called once for each request.
    """

    setting: str
    is_kept: bool = False

    @property
    def is_set(self) -> bool:
        """Whether users may see only some of the runs."""
        return getattr(conf, self.setting) is not None

    def runs(self, request: Any) -> RunQuerySet:
        """Return the runs that the request may see; calls the project's function if there is one.

        Raises TypeError if that does not return a queryset of runs: None would mean all runs elsewhere.
        """
        kept: RunQuerySet | None = getattr(request, _KEPT, None) if self.is_kept else None
        if kept is not None:
            return kept.using(read_alias())
        runs: RunQuerySet = Run.objects.using(read_alias())
        path = getattr(conf, self.setting)
        if path is None:
            return runs
        found = import_string(path)(request, runs)
        if not isinstance(found, RunQuerySet):
            raise TypeError(f'DURABLE["{self.setting}"] has to return a queryset of runs, not {type(found).__name__}')
        if self.is_kept:
            setattr(request, _KEPT, found)
        return found.using(read_alias())

    def within(self, request: Any) -> RunQuerySet | None:
        """Return the runs that the request may see, for `within=` of the inspection; None for all."""
        return self.runs(request) if self.is_set else None

    def sees(self, request: Any) -> Callable[[str], bool] | None:
        """Return whether the request may see the run with an id, as a function for `acting_as(sees=)`; None for all."""
        return (lambda run_id: self.runs(request).filter(pk=run_id).exists()) if self.is_set else None


def runs_within(within: RunQuerySet | None) -> RunQuerySet:
    """Return the runs that a reader may see: these, or all for None."""
    return Run.objects.using(read_alias()) if within is None else within


def rows_within(rows: RowsT, within: RunQuerySet | None) -> RowsT:
    """Return the rows whose run is one that a reader may see; all for None."""
    return rows if within is None else rows.filter(run__in=within.order_by().values("pk"))


def find_among(runs: RunQuerySet, run_id: str) -> Run | None:
    """Return the run with this id, without its payloads, if it is one of these runs; else None."""
    return runs.filter(pk=run_id).with_side_rows().defer("input", "output").first()


def existing_among(within: RunQuerySet | None, ids: Iterable[str | None]) -> frozenset[str]:
    """Return the ids whose runs are `within` (None: all runs). One query; none if `within` is None or there are no
    ids.
    """
    wanted = {each for each in ids if each is not None}
    if not wanted or within is None:
        return frozenset(wanted)
    return frozenset(within.filter(pk__in=wanted).values_list("pk", flat=True))


def asked_of(questions: Sequence[Question], ids: Collection[str]) -> list[Question]:
    """Return the questions that a reader is asked who may see, of their runs, those with these ids.

    A question for operators is for those who may see its run. Any other one says itself whom it is for.
    """
    return [each for each in questions if not each.is_for_operators or each.run_id in ids]
