"""Rare reads and writes of the verbs that no pass does: the audit log, the history of a new run.

Shared by the stores on a database. They are rare and not urgent, hence ordinary ORM statements for every database. The
caller holds the transaction and the lock.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db import transaction

from durable.core.records import ActionRecord, AttemptRecord, Entry, Message
from durable.models import Attempt, EntryMetadata, OperatorAction, QueueMessage, Run
from durable.models import Entry as EntryModel
from durable.store import row_rules
from durable.store.rows import ATTEMPT, ENTRY, MESSAGE, METADATA

__all__ = ["import_history", "log", "log_repeat", "retract", "states"]

_AT_ONCE = 1_000  # rows of one statement


def log(alias: str, actions: Sequence[ActionRecord]) -> None:
    """Append to the audit log."""
    names = ActionRecord.__slots__
    rows = [OperatorAction(**{name: getattr(each, name) for name in names}) for each in actions]
    OperatorAction.objects.using(alias).bulk_create(rows, batch_size=_AT_ONCE)


def log_repeat(alias: str, action: ActionRecord, since: datetime) -> bool:
    """Count the action in the newest row like it; return False if there is none since then."""
    with transaction.atomic(using=alias):
        rows = OperatorAction.objects.using(alias)
        alike = rows.filter(created_at__gte=since, **{name: getattr(action, name) for name in row_rules.ALIKE})
        row = alike.select_for_update().order_by("-created_at", "-id").first()
        if row is None:
            return False
        rows.filter(pk=row.pk).update(detail=row_rules.repeated(row.detail, action.created_at))
        return True


def import_history(
    alias: str,
    run_id: str,
    *,
    entries: Sequence[Entry],
    attempts: Sequence[AttemptRecord],
    messages: Sequence[Message],
) -> None:
    """Write the history and the inbox of a run that has none."""
    with transaction.atomic(using=alias):
        rows = [_row(EntryModel, ENTRY.names, each, run_id=run_id) for each in entries]
        EntryModel.objects.using(alias).bulk_create(rows, batch_size=_AT_ONCE)
        keys = _keys(alias, run_id, rows)
        metadata = [_row(EntryMetadata, METADATA.names, each, entry_id=keys[each.location]) for each in entries]
        EntryMetadata.objects.using(alias).bulk_create(metadata, batch_size=_AT_ONCE)
        failed = [_row(Attempt, ATTEMPT.names, each, run_id=run_id) for each in attempts]
        Attempt.objects.using(alias).bulk_create(failed, batch_size=_AT_ONCE)
        inbox = [_row(QueueMessage, MESSAGE.names, each) for each in messages]
        QueueMessage.objects.using(alias).bulk_create(inbox, batch_size=_AT_ONCE)
        newest = max((each.order for each in messages), default=0)
        Run.objects.using(alias).filter(id=run_id).update(message_count=newest)


def retract(alias: str, run_id: str, message_ids: Sequence[str]) -> None:
    """Delete messages of the run."""
    QueueMessage.objects.using(alias).filter(run_id=run_id, id__in=message_ids).delete()


def states(alias: str, run_ids: Sequence[str]) -> dict[str, str]:
    """Return the states of the existing ones of the runs."""
    return dict(Run.objects.using(alias).filter(id__in=run_ids).order_by().values_list("id", "state"))


def _row(model: Any, names: Sequence[str], record: Any, **others: Any) -> Any:
    return model(**{name: getattr(record, name) for name in names}, **others)


def _keys(alias: str, run_id: str, rows: Sequence[EntryModel]) -> dict[str, int]:
    """Return the keys of the entries, queried where the database did not return them."""
    if all(row.pk is not None for row in rows):
        return {row.location: row.pk for row in rows}
    return dict(EntryModel.objects.using(alias).filter(run_id=run_id).values_list("location", "id"))
