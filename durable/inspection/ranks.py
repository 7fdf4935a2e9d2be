"""The priority and the share of a run, for every surface, and what comes before a run that waits for a worker."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.db.models import Q
from django.utils.translation import gettext as _

from durable.conf import conf
from durable.core.ranks import UNTAGGED, Ranking
from durable.core.records import HoldKind, RunState
from durable.inspection.capped_counts import Count, samples
from durable.inspection.holds import find_hold
from durable.inspection.humanize import span
from durable.models import Lane, Run, RunRank
from durable.models.run import RunQuerySet

_CAP: Final = 1_000  # runs that come first, as far as they are counted
_LANES: Final = 20  # head starts of a queue, the greatest first


def rank_of(run: Run) -> Ranking | None:
    """Return what the start of the run has said of its rank; None for nothing. One query, for such a run alone."""
    if run.head_start is None:
        return None
    row = getattr(run, "ranking", None)
    return None if row is None else row.record


def rank_data(run: Run) -> dict[str, Any]:
    """Return the rank as data: `head_start` in seconds; None for what was not given."""
    ranking = rank_of(run) or Ranking()
    return {
        "priority": ranking.priority or None,
        "head_start": ranking.head_start if ranking.priority else None,
        "share": ranking.share or None,
        "weight": ranking.weight if ranking.share else None,
    }


def rank_words(ranking: Ranking) -> str:
    """Return the priority in words: "high, a head start of 10 m"; "" without one."""
    if not ranking.priority:
        return ""
    told = {"name": ranking.priority, "span": span(abs(ranking.head_start))}
    if not ranking.head_start:
        return _("%(name)s, no head start") % told
    if ranking.head_start > 0:
        return _("%(name)s, a head start of %(span)s") % told
    return _("%(name)s, put back by %(span)s") % told


def share_words(ranking: Ranking) -> str:
    """Return the share in words: "tenant-7", or "tenant-7, weight 2"; "" without one."""
    if not ranking.share or ranking.weight == 1:
        return ranking.share
    return _("%(share)s, weight %(weight)s") % {"share": ranking.share, "weight": f"{ranking.weight:g}"}


def rank_note(run: Run, now: datetime) -> str:
    """Return which runs come before a run that is due and waits for a worker, as a sentence without a full stop.

    "" for any other run, in a paused queue, and in one whose runs have neither priorities nor shares. Counts at most
    1,000. One query, and four more where runs of the queue have had priorities or shares.
    """
    is_held = run.lease_expires_at is not None and run.lease_expires_at > now
    if run.wake_at is None or run.wake_at > now or is_held or run.state == RunState.PAUSED:
        return ""
    lanes = Lane.objects.using(conf.DATABASE).filter(queue=run.queue).order_by("-head_start")
    head_starts = list(lanes.values_list("head_start", flat=True)[:_LANES])
    if not head_starts or find_hold(HoldKind.QUEUE, run.queue) is not None:
        return ""
    ranking = rank_of(run)
    before = _before(run, head_starts, now)
    if ranking is None or not ranking.share:
        if not before.all:
            return ""
        return _("Before it come runs with a head start, or whose shares have their turns: %(number)s") % {
            "number": before.all
        }
    told = {"share": ranking.share, "number": before.all}
    if not before.all:
        return _("Its turn in share %(share)s is the next") % told
    if before.is_capped:  # those that were counted may all be of other shares
        return _("It waits for its turn in share %(share)s: before it come %(number)s") % told
    told["same"] = before.of(ranking.share)
    return _("It waits for its turn in share %(share)s: before it come %(number)s, of its own share %(same)s") % told


class _Before(NamedTuple):
    """The runs that are claimed before a run; with `is_capped` there are more."""

    ids: list[str]
    is_capped: bool

    @property
    def all(self) -> Count:
        return Count(number=len(self.ids), is_capped=self.is_capped)

    def of(self, share: str) -> Count:
        rows = RunRank.objects.using(conf.DATABASE).filter(run_id__in=self.ids, share=share)
        return Count(number=rows.count())


def _before(run: Run, head_starts: list[int], now: datetime) -> _Before:
    """Return the due runs with a rank that are claimed before this one."""
    assert run.wake_at is not None
    own = min(run.start_tag or run.wake_at, UNTAGGED - timedelta(days=2)) - timedelta(seconds=run.head_start or 0)
    parts: list[RunQuerySet] = []
    for head_start in head_starts:
        until = own + timedelta(seconds=head_start)
        lane = Run.objects.using(conf.DATABASE).filter(queue=run.queue, head_start=head_start, wake_at__lte=now)
        lane = lane.exclude(state=RunState.PAUSED.value).filter(Q(lease_expires_at=None) | Q(lease_expires_at__lte=now))
        in_order = lane.order_by("start_tag", "wake_at", "id")
        parts += [in_order.filter(start_tag__lt=until), in_order.filter(start_tag=None, wake_at__lt=until)]
    found = [each for ids in samples(parts, "id", _CAP + 1) for each in ids]
    return _Before([each for each in found if each != run.id][:_CAP], len(found) > _CAP)
