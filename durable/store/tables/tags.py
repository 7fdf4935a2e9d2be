"""Tags in a database: written by starts, changed by runs that tag themselves, and restored by replays."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from durable.core.new_runs import NewRun
from durable.core.records import RunRecord, TagChange
from durable.models import RunTag

_AT_ONCE: Final = 1_000  # rows of one statement
_KEY: Final = ["run", "name"]


def with_tags(runs: Iterable[RunRecord]) -> list[NewRun]:
    """Return the runs whose starts give them tags."""
    return [run for run in runs if isinstance(run, NewRun) and run.tags]


def put(alias: str, runs: Sequence[NewRun], *, is_retried: bool = False) -> None:
    """Write the tags of new runs, in the transaction of their creation. `is_retried`: an earlier try may have written
    them.

    If a new run already has a row, it was left by a deleted run with the same id.
    """
    rows = [
        RunTag(run_id=run.id, name=name, value=value, start_value=value, created_at=run.created_at)
        for run in runs
        for name, value in (run.tags or {}).items()
    ]
    if is_retried:
        RunTag.objects.using(alias).bulk_create(rows, batch_size=_AT_ONCE, ignore_conflicts=True)
    else:
        _put_over(alias, rows, ["value", "start_value", "created_at"])


def of_runs(alias: str, run_ids: Sequence[str], *, at_start: bool = False) -> dict[str, dict[str, str]]:
    """Return the tags of the runs that have some, by run and name.

    With `at_start`, return the tags that their starts gave.
    """
    column = "start_value" if at_start else "value"
    rows = RunTag.objects.using(alias).filter(run_id__in=run_ids, **{f"{column}__isnull": False})
    found: dict[str, dict[str, str]] = {}
    for run_id, name, value in rows.order_by("run_id", "name").values_list("run_id", "name", column):
        found.setdefault(run_id, {})[name] = value
    return found


def change(alias: str, run_id: str, change: TagChange) -> None:
    """Set or delete tags of a run whose row is locked."""
    tags = change.tags
    rows = RunTag.objects.using(alias)
    if gone := [name for name, value in tags.items() if value is None]:
        rows.filter(run_id=run_id, name__in=gone).delete()
    new = [
        RunTag(run_id=run_id, name=name, value=value, created_at=change.created_at)
        for name, value in tags.items()
        if value is not None
    ]
    _put_over(alias, new, ["value"])


def _put_over(alias: str, rows: Sequence[RunTag], changed: Sequence[str]) -> None:
    """Insert the rows; update these columns of rows that exist."""
    RunTag.objects.using(alias).bulk_create(
        rows,
        batch_size=_AT_ONCE,
        update_conflicts=True,
        update_fields=changed,
        unique_fields=_KEY,
    )
