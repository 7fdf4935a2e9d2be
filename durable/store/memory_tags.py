"""The tags of `durable.store.memory`: what `durable.store.tags` is for databases.

The store holds its lock around each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class MemoryTags:
    """The tags of all runs, by run and name, and those that their starts have given."""

    _tags: dict[str, dict[str, str]] = field(default_factory=dict)
    _at_start: dict[str, dict[str, str]] = field(default_factory=dict)

    def copied(self) -> MemoryTags:
        """Return a copy for a snapshot. The tags of a run are replaced, never changed."""
        return MemoryTags(dict(self._tags), dict(self._at_start))

    def put(self, run_id: str, tags: Mapping[str, str]) -> None:
        """Give a new run its tags."""
        self._tags[run_id] = self._at_start[run_id] = dict(tags)

    def of_runs(self, run_ids: Sequence[str], *, at_start: bool = False) -> dict[str, dict[str, str]]:
        """Return the tags of those of the runs that have some, by run and name; `at_start`: those of their starts."""
        tables = self._at_start if at_start else self._tags
        return {each: dict(sorted(tables[each].items())) for each in run_ids if tables.get(each)}

    def change(self, run_id: str, tags: Mapping[str, str | None]) -> None:
        """Set tags of a run; None takes one away."""
        changed = {**self._tags.get(run_id, {}), **tags}
        self._tags[run_id] = {name: value for name, value in changed.items() if value is not None}
