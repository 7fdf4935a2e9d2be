"""The keys of `durable.store.memory`: who holds one, and what becomes of it.

What `durable.store.keys` is for databases.

The store holds its lock around each call, and passes its runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from durable.core.errors import KeyConflictError
from durable.core.records import ENDED, KeyedSend, KeyRecord, RunRecord

Runs = Mapping[str, RunRecord]


@dataclass(slots=True)
class MemoryKeys:
    """The keys of all runs. A key is freed by the end of its run, which is looked up here: no end writes it."""

    _keys: dict[str, KeyRecord] = field(default_factory=dict)  # by run
    _holders: dict[tuple[str, str], str] = field(default_factory=dict)  # the run that had a key last
    _sends: dict[str, KeyedSend] = field(default_factory=dict)  # by message

    def copied(self) -> MemoryKeys:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        return MemoryKeys(dict(self._keys), dict(self._holders), dict(self._sends))

    def put(self, key: KeyRecord) -> None:
        """Give a run its key."""
        self._keys[key.run_id] = key
        self._holders[key.workflow, key.key] = key.run_id

    def holder(self, runs: Runs, workflow: str, key: str) -> RunRecord | None:
        """Return the open run that has the key: the end of a run frees it."""
        run = runs.get(self._holders.get((workflow, key), ""))
        return run if run is not None and self._is_held_by(run) else None

    def close(self, run_id: str) -> None:
        """Let another run have the key of this one."""
        if run_id in self._keys:
            self._keys[run_id] = replace(self._keys[run_id], is_open=False)

    def forget(self, run_id: str) -> None:
        """Take the key from this run for good."""
        self._keys.pop(run_id, None)

    def open_again(self, runs: Runs, run_id: str) -> None:
        """Give a run that goes on after its end its key back. Raises KeyConflictError if another open run has it."""
        key = self._keys.get(run_id)
        if key is None:
            return
        holder = self.holder(runs, key.workflow, key.key)
        if holder is not None and holder.id != run_id:
            raise KeyConflictError(holder.id, key.key)
        self._keys[run_id] = replace(key, is_open=True)
        self._holders[key.workflow, key.key] = run_id

    def note_move(self, run_id: str, at: datetime) -> None:
        """Count a start that was merged into this run. Raises KeyError for a run without a key."""
        key = self._keys[run_id]
        self._keys[run_id] = replace(key, moves=key.moves + 1, moved_at=at)

    def of_runs(self, runs: Runs, run_ids: Sequence[str]) -> dict[str, KeyRecord]:
        """Return the keys of those of the runs that were started with one, by run."""
        found = [(each, self._keys[each]) for each in run_ids if each in self._keys]
        return {each: replace(key, is_open=self._is_held_by(runs[each])) for each, key in found}

    def note_sends(self, sends: Sequence[KeyedSend]) -> None:
        """Note what `start_or_send` has sent; a message that is known gets this row."""
        self._sends |= {each.message_id: each for each in sends}

    def sends_among(self, run_id: str, message_ids: Iterable[str]) -> list[KeyedSend]:
        """Return those of these messages that `start_or_send` has sent to the run."""
        found = [self._sends[each] for each in message_ids if each in self._sends]
        return [each for each in found if each.run_id == run_id]

    def keeps(self, run: RunRecord, message_ids: Iterable[str]) -> bool:
        """Whether the end of an open run is refused because it has not received these messages."""
        return self._is_held_by(run) and bool(self.sends_among(run.id, message_ids))

    def note_follower(self, run_id: str, before: str) -> None:
        """Note that this run has the messages which `before` has not received."""
        self._keys[run_id] = replace(self._keys[run_id], follows=before)

    def followed_by(self, run_id: str) -> str | None:
        """Return the newest run that has got the messages which this one has not received."""
        return next((each for each, key in reversed(self._keys.items()) if key.follows == run_id), None)

    def _is_held_by(self, run: RunRecord) -> bool:
        return run.state not in ENDED and run.id in self._keys and self._keys[run.id].is_open
