"""The ranks of `durable.store.memory`: what `durable.store.ranks` is for databases.

The store holds its lock around each call, and passes its runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from durable.core.limits import NewRun
from durable.core.ranks import UNTAGGED, Candidate, Ranking, ShareTag, inherited, ranked, span, tagged
from durable.core.records import RunRecord
from durable.store import row_rules
from durable.store.base import DuePoint


@dataclass(slots=True)
class MemoryRanks:
    """The rankings of runs, the tags of those that have one, and of each queue and share where it goes on."""

    rankings: dict[str, Ranking] = field(default_factory=dict)
    _tags: dict[str, datetime] = field(default_factory=dict)
    _shares: dict[tuple[str, str], ShareTag] = field(default_factory=dict)

    def copied(self) -> MemoryRanks:
        """Return a copy for a snapshot. Records are replaced, never changed."""
        return MemoryRanks(dict(self.rankings), dict(self._tags), dict(self._shares))

    def put(self, run: RunRecord, ranking: Ranking) -> None:
        """Give a new run a ranking. One that was started by another run gets its start tag from a claim."""
        self.rankings[run.id] = ranking
        if ranking.share:
            self._tags[run.id] = UNTAGGED
            if run.parent_id is None:
                self._tag([run], run.created_at)

    def of_child(self, run: NewRun) -> Ranking | None:
        """Return the ranking of a child that is to be created."""
        return inherited(run.ranking, None if run.parent_id is None else self.rankings.get(run.parent_id))

    def _tag(self, runs: Iterable[RunRecord], now: datetime) -> None:
        for run in runs:
            if not row_rules.is_due(run, now):
                continue
            ranking = self.rankings[run.id]
            queue = self._shares.get((run.queue, ""), ShareTag())
            if queue.tag is None:
                queue = self._shares[run.queue, ""] = ShareTag(now, queue.round)
            share = self._shares.get((run.queue, ranking.share), ShareTag())
            first = tagged(queue, share, now)
            after = ShareTag(first + span(1, ranking.weight), max(share.round, queue.round))
            self._tags[run.id], self._shares[run.queue, ranking.share] = first, after

    def candidates(self, due: Sequence[RunRecord], now: datetime) -> list[Candidate]:
        """Return due runs in the order of rank."""
        waiting = [run for run in due if self._tags.get(run.id) == UNTAGGED]
        self._tag(sorted(waiting, key=lambda run: (run.wake_at or now, run.id)), now)
        return ranked(
            [
                Candidate(
                    run.id,
                    run.wake_at or now,
                    self.rankings[run.id].head_start if run.id in self.rankings else 0,
                    self._tags.get(run.id),
                )
                for run in due
            ]
        )

    def behind(self, found: Sequence[Candidate], since: DuePoint, since_ranked: datetime | None) -> list[Candidate]:
        """Return those that a claim which begins at these points finds."""
        return [
            each
            for each in found
            if each.tag is not None
            or (
                since_ranked is None or each.wake_at >= since_ranked
                if each.run_id in self.rankings
                else (each.wake_at, each.run_id) >= since
            )
        ]

    def note_claimed(self, run_id: str) -> None:
        """Forget the tag of a run that is claimed: it has had its turn."""
        self._tags.pop(run_id, None)

    def note_served(self, queue: str, taken: Sequence[Candidate], *, is_one_left: bool) -> None:
        """Note up to which tag the shares of a queue are served; a new round when no run of theirs waits."""
        tags = [each.tag for each in taken if each.tag is not None]
        found = self._shares.get((queue, ""))
        if not tags and (is_one_left or found is None or found.tag is None):
            return
        before = found or ShareTag()
        if not is_one_left:
            self._shares[queue, ""] = ShareTag(None, before.round + 1)
        else:
            known = [] if before.tag is None else [before.tag]
            self._shares[queue, ""] = ShareTag(max(tags + known), before.round)
