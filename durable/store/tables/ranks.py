"""Ranks on SQLite: what a start writes, and which due runs a claim takes.

Each function is called in a transaction that may write. On PostgreSQL, database functions do the same; reading
rankings, and moving a run to another queue, are the same on both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final

from django.db.models import Exists, OuterRef, Q

from durable.core.limits.ranks import UNTAGGED, Candidate, Ranking, ShareTag, inherited, ranked, served, span, tagged
from durable.core.new_runs import NewRun
from durable.core.records import ChildStart, RunRecord, RunState
from durable.models import Lane, Run, RunRank, Share
from durable.models.run import RunQuerySet
from durable.store.base import DuePoint

#: The most runs of each lane that get their start tags in one claim.
_TAGGED_AT_ONCE: Final = 100


def of_runs(alias: str, run_ids: Sequence[str]) -> dict[str, Ranking]:
    """Return the rankings that the starts of these runs gave, by run; one query."""
    return {each.run_id: each.record for each in RunRank.objects.using(alias).filter(run_id__in=run_ids)}


def grouped(runs: Sequence[NewRun]) -> list[tuple[Ranking, list[NewRun]]]:
    """Group new runs by ranking and queue, ordered by share, so that no two creators deadlock."""
    found: dict[tuple[str, Ranking], list[NewRun]] = {}
    for run in runs:
        assert run.ranking is not None
        found.setdefault((run.queue, run.ranking), []).append(run)
    in_order = sorted(found.items(), key=lambda each: (each[0][0], each[0][1].share))
    return [(ranking, group) for (_, ranking), group in in_order]


def inheriting(alias: str, starts: Sequence[ChildStart]) -> list[RunRecord]:
    """Return the runs of children of one parent, with rankings inherited from it; one query."""
    if not starts:
        return []
    parent_id = starts[0].child.parent_id
    parent = of_runs(alias, [parent_id]).get(parent_id)
    return [
        replace(run, ranking=inherited(run.ranking, parent)) if isinstance(run, NewRun) else run for run, _ in starts
    ]


def put(alias: str, run_ids: Sequence[str], queue: str, ranking: Ranking, now: datetime) -> None:
    """Write the ranking of new runs of one queue, in this order."""
    Lane.objects.using(alias).get_or_create(queue=queue, head_start=ranking.head_start)
    said = {
        "priority": ranking.priority,
        "head_start": ranking.head_start,
        "share": ranking.share,
        "weight": ranking.weight,
    }
    RunRank.objects.using(alias).bulk_create(RunRank(run_id=each, **said) for each in run_ids)
    runs = Run.objects.using(alias).filter(id__in=run_ids)
    if not ranking.share:
        runs.update(head_start=ranking.head_start)
        return
    runs.update(head_start=ranking.head_start, start_tag=UNTAGGED)
    due_now = runs.filter(wake_at__lte=now, parent_id=None).exclude(state=RunState.PAUSED.value)
    found = set(due_now.values_list("id", flat=True))
    due = [each for each in run_ids if each in found]
    first = _moved(alias, queue, ranking, len(due), now)
    for number, run_id in enumerate(due):
        Run.objects.using(alias).filter(id=run_id).update(start_tag=first + span(number, ranking.weight))


def open_lanes(alias: str, queue: str, runs: RunQuerySet) -> None:
    """Add lanes to the queue for the head starts of these runs, which come to it."""
    found = runs.filter(head_start__isnull=False).values_list("head_start", flat=True).distinct()
    lanes = [Lane(queue=queue, head_start=each) for each in found if each is not None]
    if lanes:
        Lane.objects.using(alias).bulk_create(lanes, ignore_conflicts=True)


def requeue(alias: str, run_id: str, queue: str) -> None:
    """Give a run that was moved to this queue a rank there: a claim gives it another start tag."""
    runs = Run.objects.using(alias).filter(id=run_id).order_by()
    open_lanes(alias, queue, runs)
    if runs.filter(start_tag__isnull=False).update(start_tag=UNTAGGED):
        _open_share(alias, queue, RunRank.objects.using(alias).get(run_id=run_id).share)


def _open_share(alias: str, queue: str, share: str) -> Share:
    """Add a share to the queue, since claims do not add shares on PostgreSQL. Return the position of the queue
    itself.
    """
    rows = Share.objects.using(alias)
    of_queue, _ = rows.get_or_create(queue=queue, share="")
    rows.get_or_create(queue=queue, share=share)
    return of_queue


def _moved(alias: str, queue: str, ranking: Ranking, number: int, now: datetime) -> datetime:
    """Reserve start tags for this many runs of a share; return the first of them."""
    rows = Share.objects.using(alias)
    before = _open_share(alias, queue, ranking.share).record
    if not number:
        return now
    if before.tag is None:
        rows.filter(queue=queue, share="", tag=None).update(tag=now)
    share = rows.get(queue=queue, share=ranking.share)
    first = tagged(before, share.record, now)
    share.tag, share.round = first + span(number, ranking.weight), max(share.round, before.round)
    share.save(using=alias, update_fields=["tag", "round"])
    return first


def _of_queue(alias: str, queue: str) -> ShareTag | None:
    found = Share.objects.using(alias).filter(queue=queue, share="").first()
    return None if found is None else found.record


def has_lanes(alias: str) -> Exists:
    """Return an expression that is true for a run if its queue has ever had a run with a priority or a share."""
    return Exists(Lane.objects.using(alias).filter(queue=OuterRef("queue")))


def tag_due(alias: str, due: RunQuerySet, queue: str, now: datetime) -> None:
    """Give start tags to runs of shares that have become due."""
    for lane in Lane.objects.using(alias).filter(queue=queue):
        found = due.filter(queue=queue, head_start=lane.head_start, start_tag=UNTAGGED)
        for run_id in list(found.order_by("wake_at", "id").values_list("id", flat=True)[:_TAGGED_AT_ONCE]):
            ranking = of_runs(alias, [run_id]).get(run_id, Ranking(head_start=lane.head_start))
            tag = _moved(alias, queue, ranking, 1, now) if ranking.share else None
            Run.objects.using(alias).filter(id=run_id, start_tag=UNTAGGED).update(start_tag=tag)


def candidates(
    alias: str,
    due: RunQuerySet,
    queue: str,
    most: int,
    since: DuePoint | None,
    since_ranked: datetime | None,
) -> list[Candidate]:
    """Return due runs in the order of rank, at least the first `most`."""
    plain = due.filter(queue=queue, head_start=None)
    if since is not None:
        plain = plain.due_since(*since)
    found = [(plain.order_by("wake_at", "id"), 0)]
    for lane in Lane.objects.using(alias).filter(queue=queue):
        of_lane = due.filter(queue=queue, head_start=lane.head_start)
        without = of_lane.filter(start_tag=None)
        if since is not None and since_ranked is not None:
            without = without.filter(wake_at__gte=since_ranked)
        found.append((without.order_by("wake_at", "id"), lane.head_start))
        with_tag = of_lane.filter(Q(start_tag__lt=UNTAGGED))
        found.append((with_tag.order_by("start_tag", "wake_at", "id"), lane.head_start))
    return ranked(
        [
            Candidate(run_id, wake_at, head_start, tag)
            for runs, head_start in found
            for run_id, wake_at, tag in runs.values_list("id", "wake_at", "start_tag")[:most]
            if wake_at is not None
        ]
    )


def note_served(alias: str, queue: str, taken: Sequence[Candidate], *, is_one_left: bool) -> None:
    """Record how far a queue's shares are served (`durable.core.limits.ranks.served`)."""
    after = served(_of_queue(alias, queue), taken, is_one_left=is_one_left)
    if after is not None:
        position = {"tag": after.tag, "round": after.round}
        Share.objects.using(alias).update_or_create(queue=queue, share="", defaults=position)
