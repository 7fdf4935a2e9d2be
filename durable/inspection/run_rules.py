"""The runs that a request may see, where a project limits them: `API_RUNS` over REST, `ADMIN_RUNS` in the admin.

A surface has one rule, and queries it for the runs of each request. Errors of the project's function are not caught.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.utils.module_loading import import_string

from durable.conf import conf
from durable.inspection.reading import read_alias
from durable.models import Run
from durable.models.run import RunQuerySet


@dataclass(frozen=True, slots=True)
class RunRule:
    """The rule that the setting of this name gives.

    The setting is the dotted path of a function, which takes a request and a queryset of runs.
    """

    setting: str

    @property
    def is_set(self) -> bool:
        """Whether users may see only some of the runs."""
        return getattr(conf, self.setting) is not None

    def runs(self, request: Any) -> RunQuerySet:
        """Return the runs that the request may see; calls the project's function if there is one.

        Raises TypeError if that does not return a queryset of runs: None would mean all runs elsewhere.
        """
        runs: RunQuerySet = Run.objects.using(read_alias())
        path = getattr(conf, self.setting)
        if path is None:
            return runs
        found = import_string(path)(request, runs)
        if not isinstance(found, RunQuerySet):
            raise TypeError(f'DURABLE["{self.setting}"] has to return a queryset of runs, not {type(found).__name__}')
        return found


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
