"""The running steps of `durable.store.memory`, and what operators ask of them.

The store holds its lock around each call, and says which leases are live.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from durable.core.records import Activity, AskedOfActivity, RunRecord

#: Runs and fences of live leases.
Held = Collection[tuple[str, int]]


@dataclass(slots=True)
class MemoryActivities:
    """One for each running attempt. No part of a snapshot: what runs now is written outside of transactions."""

    _running: dict[tuple[str, str], Activity] = field(default_factory=dict)  # by run and location
    _asked: dict[Activity, AskedOfActivity] = field(default_factory=dict)

    def running(self) -> list[Activity]:
        """Return the noted attempts, the longest running first."""
        return sorted(self._running.values(), key=lambda each: each.began_at)

    def report(
        self, begun: Sequence[Activity], ended: Sequence[Activity], watched: Sequence[str], held: Held
    ) -> list[AskedOfActivity]:
        """Note what began, under these leases, and what ended; return what is asked of the watched runs."""
        for each in ended:
            noted = self._running.get((each.run_id, each.location))
            if noted is not None and noted.fence == each.fence:
                del self._running[each.run_id, each.location]
        for each in begun:
            noted = self._running.get((each.run_id, each.location))
            if (each.run_id, each.fence) in held and (noted is None or noted.fence <= each.fence):
                self._running[each.run_id, each.location] = each
        noted_now = set(self._running.values())
        self._asked = {each: asked for each, asked in self._asked.items() if each in noted_now}
        return [each for each in self._asked.values() if each.run_id in watched and (each.stack or each.abandon)]

    def ask(self, run: RunRecord, location: str, *, stack: bool, abandon: bool) -> list[str]:
        """Ask for the stack or the end of the run's attempt at this location, "" for all; return the locations."""
        found = [
            each
            for each in self.running()
            if (each.run_id, each.fence) == (run.id, run.fence) and location in ("", each.location)
        ]
        for each in found:
            before = self._asked.get(each)
            self._asked[each] = AskedOfActivity(
                run_id=each.run_id,
                location=each.location,
                attempt=each.attempt,
                fence=each.fence,
                stack=stack or (before is not None and before.stack),
                abandon=abandon or (before is not None and before.abandon),
            )
        return [each.location for each in found]

    def answer_stack(self, asked: AskedOfActivity) -> None:
        """Note that the stack was given."""
        for each, wish in self._asked.items():
            if (wish.run_id, wish.location, wish.fence) == (asked.run_id, asked.location, asked.fence):
                self._asked[each] = replace(wish, stack=False)

    def forget(self, held: Held) -> None:
        """Delete the attempts under leases that are not live."""
        self._running = {key: each for key, each in self._running.items() if (each.run_id, each.fence) in held}
