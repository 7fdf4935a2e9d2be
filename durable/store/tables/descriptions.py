"""What starts say of runs, in a database: their tags, and the instances that they are about.

Deletions of an instance read what runs are about, and so do runs that replace another one. Runs change their own tags,
and replays restore them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from durable.core.new_runs import NewRun, Subject
from durable.core.records import ENDED, RunRecord, TagChange
from durable.models import RunSubject, RunTag
from durable.store.tables import DatabaseTables

_ENDED: Final = sorted(state.value for state in ENDED)
_TAG: Final = ["run", "name"]
_ABOUT: Final = ["run", "model", "object_pk"]


def with_descriptions(runs: Iterable[RunRecord]) -> list[NewRun]:
    """Return the runs whose starts give them tags or say what they are about."""
    return [run for run in runs if isinstance(run, NewRun) and (run.tags or run.subjects)]


class DatabaseDescriptions(DatabaseTables):
    """The part of a `Store` for tags and for what runs are about."""

    def _describe(self, runs: Sequence[NewRun], *, is_retried: bool = False) -> None:
        """Write the tags of new runs and what they are about, in the transaction of their creation.

        `is_retried`: an earlier try may have written it. Else, if a new run already has a row, it was left by a deleted
        run with the same id.
        """
        tags = [
            RunTag(run_id=run.id, name=name, value=value, start_value=value, created_at=run.created_at)
            for run in runs
            for name, value in (run.tags or {}).items()
        ]
        about = [
            RunSubject(run_id=run.id, model=of.model, object_pk=of.key, cancels=of.cancels, created_at=run.created_at)
            for run in runs
            for of in run.subjects
        ]
        self._put_over(RunTag, tags, _TAG, ["value", "start_value", "created_at"], keep=is_retried)
        self._put_over(RunSubject, about, _ABOUT, ["cancels", "created_at"], keep=is_retried)

    def tags(self, run_ids: Sequence[str], *, at_start: bool = False) -> dict[str, dict[str, str]]:
        column = "start_value" if at_start else "value"
        rows = RunTag.objects.using(self.alias).filter(run_id__in=run_ids, **{f"{column}__isnull": False})
        found: dict[str, dict[str, str]] = {}
        for run_id, name, value in rows.order_by("run_id", "name").values_list("run_id", "name", column):
            found.setdefault(run_id, {})[name] = value
        return found

    def _change_tags(self, run_id: str, changes: Sequence[TagChange], _now: datetime) -> None:
        """Set or delete tags of a run whose row is locked."""
        for change in changes:
            gone = [name for name, value in change.tags.items() if value is None]
            if gone:
                RunTag.objects.using(self.alias).filter(run_id=run_id, name__in=gone).delete()
            new = [
                RunTag(run_id=run_id, name=name, value=value, created_at=change.created_at)
                for name, value in change.tags.items()
                if value is not None
            ]
            self._put_over(RunTag, new, _TAG, ["value"])

    def subjects(self, run_ids: Sequence[str]) -> dict[str, list[Subject]]:
        found: dict[str, list[Subject]] = {}
        rows = RunSubject.objects.using(self.alias).filter(run_id__in=run_ids).order_by("run_id", "id")
        for row in rows:
            found.setdefault(row.run_id, []).append(row.record)
        return found

    def to_cancel(self, model: str, keys: Sequence[str]) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        rows = RunSubject.objects.using(self.alias).filter(model=model, object_pk__in=keys, cancels=True)
        rows = rows.exclude(run__state__in=_ENDED).order_by("created_at", "run_id")
        for key, run_id in rows.values_list("object_pk", "run_id"):
            found.setdefault(key, []).append(run_id)
        return found
