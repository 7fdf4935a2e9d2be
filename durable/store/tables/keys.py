"""Keys in a database: who holds one, and what becomes of it.

`durable.store.database` calls it for both kinds of stores. A run's row is locked before the row of its key: the end of
a run holds the one and closes the other.

The key of a workflow that a migration has renamed is kept under the oldest name, so that code of any name finds it.
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
    """Return the name of a workflow under which its keys are kept."""
    know_names(alias)
    return canonical_workflow(workflow)


def take(alias: str, run_id: str, workflow: str, key: str, at: datetime) -> bool:
    """Insert the key of a run that is about to be inserted; return False if an open run has it, or the run has one."""
    workflow = owner_of_keys(alias, workflow)
    try:
        with transaction.atomic(using=alias):
            RunKey.objects.using(alias).create(run_id=run_id, workflow=workflow, key=key, taken_at=at)
    except IntegrityError:
        return False
    return True


def holder(alias: str, workflow: str, key: str) -> str | None:
    """Return the id of the run that holds the key, None if none does."""
    held = RunKey.objects.using(alias).filter(workflow=owner_of_keys(alias, workflow), key=key, is_open=True)
    return held.values_list("run_id", flat=True).first()


def close(alias: str, run_id: str) -> bool:
    """Let another run have the key of this one, which has ended or will; return whether it had one."""
    return bool(RunKey.objects.using(alias).filter(run_id=run_id, is_open=True).update(is_open=None))


def forget(alias: str, run_id: str) -> None:
    """Take the key from this run for good."""
    RunKey.objects.using(alias).filter(run_id=run_id).delete()


def forget_deleted(alias: str, run_id: str) -> None:
    """Delete the key of a run that was deleted behind the engine's back."""
    run = Run.objects.using(alias).filter(id=run_id)
    RunKey.objects.using(alias).filter(~Exists(run), run_id=run_id).delete()


def open_again(alias: str, run_id: str) -> None:
    """Give a run that goes on after its end its key back. Raises KeyConflictError if another open run has it."""
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
    """Return the keys of those of the runs that were started with one, by run."""
    return {each.run_id: each.record for each in RunKey.objects.using(alias).filter(run_id__in=run_ids)}


def note_sends(alias: str, sends: Sequence[KeyedSendRecord]) -> None:
    """Note what `start_or_send` has sent; a message that is known gets this row."""
    rows = KeyedSend.objects.using(alias)
    known = rows.filter(pk__in=[each.message_id for each in sends if each.was_first])
    known.delete()  # of a run that has completed without receiving it
    rows.bulk_create(KeyedSend(**{name: getattr(each, name) for name in KeyedSendRecord.__slots__}) for each in sends)


def unreceived(alias: str, run_id: str) -> list[KeyedSendRecord]:
    """Return what `start_or_send` has sent to the run and no wait has received, in order."""
    pending = QueueMessage.objects.using(alias).filter(run_id=run_id, state=MessageState.PENDING.value)
    ids = list(pending.order_by("order").values_list("id", flat=True))
    found = KeyedSend.objects.using(alias).filter(run_id=run_id).in_bulk(ids) if ids else {}
    return [
        KeyedSendRecord(**{name: getattr(found[each], name) for name in KeyedSendRecord.__slots__})
        for each in ids
        if each in found
    ]


def note_follower(alias: str, run_id: str, before: str) -> None:
    """Note that this run has the messages which `before` has not received."""
    RunKey.objects.using(alias).filter(run_id=run_id).update(follows=before)


def followed_by(alias: str, run_id: str) -> str | None:
    """Return the newest run that has got the messages which this one has not received."""
    after = RunKey.objects.using(alias).filter(follows=run_id)
    return after.order_by("-taken_at").values_list("run_id", flat=True).first()
