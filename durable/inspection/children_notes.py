"""The effects of a pause and a cancel of a run on its children, and the failed children of a completed run."""

from __future__ import annotations

from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from durable.conf import conf
from durable.core.records import ENDED, RunState, WhenParentEnds
from durable.inspection.capped_counts import Count
from durable.inspection.family import FamilyCounts, count_children
from durable.inspection.shell_command import command
from durable.models import Child, Run
from durable.models.run import RunQuerySet

_GOING_ON = (RunState.PENDING, RunState.RUNNING, RunState.SLEEPING)


def verb_note(run: Run, verb: str, within: RunQuerySet | None = None) -> str:
    """Return what the verb means for the children of the run; "" for none that it concerns, and for other verbs.

    `within` limits the children, for example to those that a user may see.
    """
    if run.state in ENDED:
        return ""
    note = {"pause": pause_note, "cancel": cancel_note}.get(verb)
    return "" if note is None else note(run, within)


def pause_note(run: Run, within: RunQuerySet | None = None) -> str:
    """Return that the open children of a run go on while it is paused; "" without any. One look at an index, or two."""
    if not _has_children(run):
        return ""
    counts = count_children(run.id, within)
    going_on = [each.value for each in _GOING_ON if counts.states.get(each.value)]
    number = sum(counts.states[each] for each in going_on)
    if not number:
        return ""
    text = ngettext(
        "%(number)s open child is not paused with it, and goes on: %(command)s",
        "%(number)s open children are not paused with it, and go on: %(command)s",
        number,
    )
    pausing = f"{command('children', run.id, output='ids')} | {command('pause', '-')}"
    return text % {"number": Count(number=number, is_capped=counts.is_capped), "command": pausing}


def failed_note(run: Run, children: FamilyCounts | None = None, within: RunQuerySet | None = None) -> str:
    """Return how many children of a completed run have failed, and the command that recovers them; "" for none.

    `children` are counted unless the caller has done that: one look at an index, and one statement more with children.
    """
    if run.state != RunState.COMPLETED or (children is None and not _has_children(run)):
        return ""
    counts = count_children(run.id, within) if children is None else children
    if not counts.failed:
        return ""
    text = ngettext(
        "%(number)s of its %(total)s children has failed; its output stays as it is: %(command)s",
        "%(number)s of its %(total)s children have failed; its output stays as it is: %(command)s",
        counts.failed.number,
    )
    recovering = command("recover", children_of=run.id)
    return text % {"number": counts.failed, "total": counts.total, "command": recovering}


def cancel_note(run: Run, within: RunQuerySet | None = None) -> str:
    """Return that the open children of a run are cancelled with it; "" without any."""
    cancelled = Child.objects.using(conf.DATABASE).filter(
        parent_id=run.id, when_parent_ends=WhenParentEnds.CANCEL.value
    )
    if within is not None:
        cancelled = cancelled.filter(run__in=within.order_by().values("pk"))
    if not cancelled.order_by("parent_id", "position").values_list("pk").first():
        return ""
    return _(
        "Its open children are cancelled with it. A cancelled run is not recovered: a restart is a new run, which starts all "
        "of its children anew"
    )


def _has_children(run: Run) -> bool:
    children = Child.objects.using(conf.DATABASE).filter(parent_id=run.id)
    return children.order_by("position").values_list("pk").first() is not None
