"""Keys in a database: who holds one, and who gets it next.

`durable.store.database` calls this module on both databases. A run's row is locked before the row of its key, as when a
run ends and frees its key.

The keys of a renamed workflow are kept under its oldest name, so that code with any name finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import Exists, F

from durable.core.errors import KeyConflictError
from durable.core.names.renames import canonical_workflow
from durable.core.records import KeyedSend as KeyedSendRecord
from durable.core.records import KeyRecord, MessageState
from durable.models import KeyedSend, QueueMessage, Run, RunKey
from durable.models.renames import know_names


def owner_of_keys(alias: str, workflow: str) -> str:
    """Return the name under which a workflow's keys are kept."""
    know_names(alias)
    return canonical_workflow(workflow)


def take(alias: str, run_id: str, workflow: str, key: str, at: datetime) -> bool:
    """Insert the key of a run that is about to be inserted. Return False if an open run has the key, or the run has
    one.
    """
    workflow = owner_of_keys(alias, workflow)
    try:
        with transaction.atomic(using=alias):
            RunKey.objects.using(alias).create(run_id=run_id, workflow=workflow, key=key, taken_at=at)
    except IntegrityError:
        return False
    return True


def holder(alias: str, workflow: str, key: str) -> str | None:
    """Return the id of the run that holds the key, or None."""
    held = RunKey.objects.using(alias).filter(workflow=owner_of_keys(alias, workflow), key=key, is_open=True)
    return held.values_list("run_id", flat=True).first()


def close(alias: str, run_id: str) -> bool:
    """Free the key of this run, which has ended or is about to; return whether it had one."""
    return bool(RunKey.objects.using(alias).filter(run_id=run_id, is_open=True).update(is_open=None))


def forget(alias: str, run_id: str) -> None:
    """Take the key from this run for good."""
    RunKey.objects.using(alias).filter(run_id=run_id).delete()


def forget_deleted(alias: str, run_id: str) -> None:
    """Delete the key of a run that was deleted without the engine."""
    run = Run.objects.using(alias).filter(id=run_id)
    RunKey.objects.using(alias).filter(~Exists(run), run_id=run_id).delete()


def open_again(alias: str, run_id: str) -> None:
    """Give a continuing run its key back. Raises KeyConflictError if another open run has it."""
    found = RunKey.objects.using(alias).filter(run_id=run_id, is_open=None).first()
    if found is None:
        return
    try:
        with transaction.atomic(using=alias):
            RunKey.objects.using(alias).filter(run_id=run_id).update(is_open=True)
    except IntegrityError:
        raise KeyConflictError(holder(alias, found.workflow, found.key) or "", found.key) from None


def note_move(alias: str, run_id: str, at: datetime) -> None:
    """Count a start that was merged into this run."""
    RunKey.objects.using(alias).filter(run_id=run_id).update(moves=F("moves") + 1, moved_at=at)


def of_runs(alias: str, run_ids: list[str]) -> dict[str, KeyRecord]:
    """Return the keys of the runs that were started with one, by run."""
    return {each.run_id: each.record for each in RunKey.objects.using(alias).filter(run_id__in=run_ids)}


def note_sends(alias: str, sends: Sequence[KeyedSendRecord]) -> None:
    """Record what `start_or_send` has sent. A message that is already recorded gets this row."""
    rows = KeyedSend.objects.using(alias)
    known = rows.filter(pk__in=[each.message_id for each in sends if each.was_first])
    known.delete()  # of a run that has completed without receiving it
    rows.bulk_create(KeyedSend(**{name: getattr(each, name) for name in KeyedSendRecord.__slots__}) for each in sends)


def unreceived(alias: str, run_id: str) -> list[KeyedSendRecord]:
    """Return what `start_or_send` has sent to the run and no wait has received yet, in order."""
    pending = QueueMessage.objects.using(alias).filter(run_id=run_id, state=MessageState.PENDING.value)
    ids = list(pending.order_by("order").values_list("id", flat=True))
    found = KeyedSend.objects.using(alias).filter(run_id=run_id).in_bulk(ids) if ids else {}
    return [
        KeyedSendRecord(**{name: getattr(found[each], name) for name in KeyedSendRecord.__slots__})
        for each in ids
        if each in found
    ]


def note_follower(alias: str, run_id: str, before: str) -> None:
    """Record that this run has taken over the messages that `before` did not receive."""
    RunKey.objects.using(alias).filter(run_id=run_id).update(follows=before)


def followed_by(alias: str, run_id: str) -> str | None:
    """Return the newest run that has taken over this run's unreceived messages."""
    after = RunKey.objects.using(alias).filter(follows=run_id)
    return after.order_by("-taken_at").values_list("run_id", flat=True).first()
