"""Messages that an ended run has never received."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from django.db.models import Exists, OuterRef
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.records import MessageState, RunState
from durable.inspection.capped_counts import Count
from durable.models import KeyedSend, QueueMessage, Run, RunKey
from durable.models.run import RunQuerySet

_CAP: Final = 1_000
_PENDING: Final = MessageState.PENDING.value


def messages_left_note(run: Run, within: RunQuerySet | None = None) -> str:
    """Return how many messages of an ended run were never received, and who has got others instead; "" for none.

    For a run to which messages were sent two queries, none for any other. `within` limits the other run.
    """
    if not run.message_count:
        return ""
    pending = QueueMessage.objects.using(conf.DATABASE).filter(run=run.pk, state=_PENDING).order_by("order")
    left = pending.values("pk")[: _CAP + 1].count()
    notes = []
    if left:
        text = ngettext("%(number)s message was never received", "%(number)s messages were never received", left)
        notes.append(text % {"number": str(Count(number=min(left, _CAP), is_capped=left > _CAP))})
    following = RunKey.objects.using(conf.DATABASE).filter(follows=run.pk).order_by("-taken_at")
    if within is not None:
        following = following.filter(run__in=within.order_by().values("pk"))
    if (other := following.values_list("run_id", flat=True).first()) is not None:
        notes.append(
            _('What was sent to its key and it had not received was passed on to run "%(run)s"') % {"run": other}
        )
    return ". ".join(notes)


def completed_with_messages(runs: RunQuerySet, now: datetime, most: int) -> RunQuerySet:
    """Return the runs that have completed in the last day and left what was sent to their keys.

    The newest first; among the newest `most` of those that ended.
    """
    recent = runs.filter(finished_at__gte=now - timedelta(days=1)).order_by("-finished_at").values("pk")[:most]
    left = QueueMessage.objects.using(conf.DATABASE).filter(run=OuterRef("pk"), state=_PENDING)
    keyed = left.filter(Exists(KeyedSend.objects.using(conf.DATABASE).filter(pk=OuterRef("pk"))))
    ended = Run.objects.using(conf.DATABASE).filter(pk__in=recent, state=RunState.COMPLETED.value, message_count__gt=0)
    return ended.filter(Exists(keyed)).order_by("-finished_at")
