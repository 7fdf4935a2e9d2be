"""Keys in a database: who holds one, and who gets it next.

A run's row is locked before the row of its key, as when a
run ends and frees its key.

The keys of a renamed workflow are kept under its oldest name, so that code with any name finds them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

from django.db import IntegrityError, transaction
from django.db.models import Exists, F

from durable.core.errors import KeyConflictError
from durable.core.names.renames import canonical_workflow
from durable.core.new_runs import key_of
from durable.core.records import ENDED, ChildStart, KeyRecord, MessageState, RunRecord
from durable.core.records import KeyedSend as KeyedSendRecord
from durable.core.transitions import moved
from durable.models import HeldStart, KeyedSend, QueueMessage, Run, RunKey
from durable.models.renames import know_names
from durable.store.base import ChildKeyTaken
from durable.store.rules import row_rules
from durable.store.tables import DatabaseTables


def close(alias: str, run_id: str) -> bool:
    """Free the key of this run, which has ended or is about to; return whether it had one."""
    return bool(RunKey.objects.using(alias).filter(run_id=run_id, is_open=True).update(is_open=None))


class DatabaseKeys(DatabaseTables):
    """The part of a `Store` for keys."""

    def start_keyed(self, run: RunRecord, key: str) -> tuple[RunRecord, bool]:
        with self._writing():
            while True:
                if self._take_key(run.id, run.workflow, key, run.created_at):
                    [(found, is_new)] = self.create([run])
                    if not is_new:
                        self._forget_key(run.id)
                    return found, is_new
                if (found_at := self._found_at(run, self._holder_of(run.workflow, key))) is not None:
                    return found_at, False
                self._forget_deleted(run.id)

    def _found_at(self, run: RunRecord, holder: str | None) -> RunRecord | None:
        """Return the row that has the run's id, or else the row of the key's holder; None if both are gone."""
        found = self.get_many([each for each in (run.id, holder) if each is not None])
        if run.id in found or holder is None:
            return found.get(run.id)
        if holder not in found:  # deleted while it was open
            self._forget_key(holder)
        return found.get(holder)

    def key_holder(self, workflow: str, key: str, *, lock: bool = False) -> RunRecord | None:
        if lock:
            self._begin_to_write()
        run_id = self._holder_of(workflow, key)
        if run_id is None:
            return None
        if not lock:
            run = self.get_many([run_id]).get(run_id)
            return None if run is None or run.state in ENDED else run
        run = self._lock_run(run_id)
        # again: it may have ended, or lost the key, before it was locked
        return run if run is not None and self._holder_of(workflow, key) == run_id else None

    def _take_keys(self, starts: Sequence[ChildStart]) -> None:
        """Take the keys of a commit's children, in one order, before the parent is locked. Raises ChildKeyTaken.

        The order matters: the end of a child frees its key and then locks its parent.
        """
        named = [(with_key, start.run) for start in starts if (with_key := key_of(start)) is not None]
        keyed = [(self._owner_of_keys(workflow), key, run) for (workflow, key), run in named]
        for workflow, key, run in sorted(keyed, key=lambda each: each[:2]):
            while not self._take_key(run.id, workflow, key, run.created_at):
                if self.get_many([run.id]):  # by an earlier try of the commit, unless the id is another's
                    break
                if self._holder_of(workflow, key) is not None:
                    raise ChildKeyTaken(run.id)
                self._forget_deleted(run.id)

    def free_key(self, run_id: str, *, for_good: bool) -> None:
        if for_good:
            self._forget_key(run_id)
        else:
            close(self.alias, run_id)

    def move(self, run: RunRecord, *, now: datetime, wake_at: datetime, input: str | None) -> RunRecord:
        after = replace(run, **moved(run, wake_at=wake_at, input=input))
        with transaction.atomic(using=self.alias):
            Run.objects.using(self.alias).filter(id=run.id).update(**row_rules.changed_columns(run, after))
            HeldStart.objects.using(self.alias).filter(run_id=run.id).update(due_at=wake_at)
            RunKey.objects.using(self.alias).filter(run_id=run.id).update(moves=F("moves") + 1, moved_at=now)
        return after

    def _owner_of_keys(self, workflow: str) -> str:
        """Return the name under which a workflow's keys are kept."""
        know_names(self.alias)
        return canonical_workflow(workflow)

    def _take_key(self, run_id: str, workflow: str, key: str, at: datetime) -> bool:
        """Insert the key of a run that is about to be inserted. Return False if an open run has the key, or the run has
        one.
        """
        workflow = self._owner_of_keys(workflow)
        try:
            with transaction.atomic(using=self.alias):
                RunKey.objects.using(self.alias).create(run_id=run_id, workflow=workflow, key=key, taken_at=at)
        except IntegrityError:
            return False
        return True

    def _holder_of(self, workflow: str, key: str) -> str | None:
        held = RunKey.objects.using(self.alias).filter(workflow=self._owner_of_keys(workflow), key=key, is_open=True)
        return held.values_list("run_id", flat=True).first()

    def _forget_key(self, run_id: str) -> None:
        """Take the key from this run for good."""
        RunKey.objects.using(self.alias).filter(run_id=run_id).delete()

    def _forget_deleted(self, run_id: str) -> None:
        """Delete the key of a run that was deleted without the engine."""
        run = Run.objects.using(self.alias).filter(id=run_id)
        RunKey.objects.using(self.alias).filter(~Exists(run), run_id=run_id).delete()

    def _open_key_again(self, run_id: str) -> None:
        """Give a continuing run its key back. Raises KeyConflictError if another open run has it."""
        found = RunKey.objects.using(self.alias).filter(run_id=run_id, is_open=None).first()
        if found is None:
            return
        try:
            with transaction.atomic(using=self.alias):
                RunKey.objects.using(self.alias).filter(run_id=run_id).update(is_open=True)
        except IntegrityError:
            raise KeyConflictError(self._holder_of(found.workflow, found.key) or "", found.key) from None

    def keys(self, run_ids: Sequence[str]) -> dict[str, KeyRecord]:
        return {each.run_id: each.record for each in RunKey.objects.using(self.alias).filter(run_id__in=run_ids)}

    def note_keyed_sends(self, sends: Sequence[KeyedSendRecord]) -> None:
        rows = KeyedSend.objects.using(self.alias)
        known = rows.filter(pk__in=[each.message_id for each in sends if each.was_first])
        known.delete()  # of a run that has completed without receiving it
        rows.bulk_create(
            KeyedSend(**{name: getattr(each, name) for name in KeyedSendRecord.__slots__}) for each in sends
        )

    def keyed_sends(self, run_id: str) -> list[KeyedSendRecord]:
        pending = QueueMessage.objects.using(self.alias).filter(run_id=run_id, state=MessageState.PENDING.value)
        ids = list(pending.order_by("order").values_list("id", flat=True))
        found = KeyedSend.objects.using(self.alias).filter(run_id=run_id).in_bulk(ids) if ids else {}
        rows = [found[each] for each in ids if each in found]
        return [KeyedSendRecord(**{name: getattr(row, name) for name in KeyedSendRecord.__slots__}) for row in rows]

    def note_follower(self, run_id: str, before: str) -> None:
        RunKey.objects.using(self.alias).filter(run_id=run_id).update(follows=before)

    def followed_by(self, run_id: str) -> str | None:
        after = RunKey.objects.using(self.alias).filter(follows=run_id)
        return after.order_by("-taken_at").values_list("run_id", flat=True).first()
