"""The parts of a run's page. Each has an address, and only the shown part is queried.

A part is a function that returns what its template `_run_<name>.html` shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpRequest
from django.utils.translation import gettext, gettext_lazy, pgettext_lazy

from durable.admin import access, charts, waterfall
from durable.admin.messages_page import MOST_MESSAGES, message_rows
from durable.admin.pages import AdminPages
from durable.admin.payload_page import PayloadView, payload_title, view_of
from durable.admin.values import cards_of
from durable.conf import conf
from durable.core.errors import ErrorInfo
from durable.core.numbers import read_whole
from durable.core.places import Place
from durable.core.records import RunState
from durable.inspection import history_counts
from durable.inspection.actions import detail_without_runs
from durable.inspection.activities import RunningStep
from durable.inspection.children import ChildCursor, CountedChildren, list_children
from durable.inspection.counting import Count, count_capped
from durable.inspection.events import LEVELS, EventKey, LoggedLine, is_kept, list_events, read_logs
from durable.inspection.explanation import explain
from durable.inspection.humanize import thousands
from durable.inspection.payloads import TooLarge, payload, read_within, redacted_error, redacted_traceback
from durable.inspection.progress import Progress
from durable.inspection.queues import paused_of
from durable.inspection.shown import published_of, statuses_of
from durable.inspection.timeline import build_timeline
from durable.inspection.tree import history_tree
from durable.inspection.undone import handler_attempts, stuck_step
from durable.models import Attempt, Entry, LogLine, OperatorAction, Run
from durable.models.run import RunQuerySet

_MOST: Final = 20  # related runs and actions to show
_MOST_ATTEMPTS: Final = 30
_MOST_PLACES: Final = 100  # of a history on one page
_MOST_LINES: Final = 200  # of a log
_MOST_OPEN: Final = 5  # messages whose bodies are shown unfolded; with more of them, a reader needs one line each
_CAP: Final = 1_000  # related runs and actions to count
_STATES: Final = frozenset(each.value for each in RunState)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The data from which a part is built."""

    admin: AdminPages
    request: HttpRequest
    run: Run
    progress: Progress
    now: datetime
    running: Sequence[RunningStep]
    children: CountedChildren

    @property
    def within(self) -> RunQuerySet | None:
        """The runs that the user may see, None for all."""
        return access.within(self.request)

    @property
    def may_see_payloads(self) -> bool:
        """Whether the user may see payloads and tracebacks."""
        return access.may(self.request, "view_payload")

    def traceback(self, error: ErrorInfo | None) -> str:
        """Return the traceback as the user may see it; "" for none."""
        return redacted_traceback(self.run.workflow, error) if self.may_see_payloads else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A tab of the page; `count` is "" if a number would say nothing."""

    name: str
    title: str
    count: str
    query: str
    is_current: bool


def _timeline(shown: Shown) -> dict[str, Any]:
    given = shown.request.GET
    is_real = given.get("time") == "real"
    after = read_whole(given.get("after", ""), 10**9)
    opened = given.get("open", "").replace("\0", "")
    timeline = build_timeline(
        shown.run,
        shown.now,
        opened=opened,
        after=-1 if after is None else after,
        is_folded=not is_real,
        open_keys=shown.progress.open_keys,
    )
    return {
        "timeline": waterfall.drawn(shown.admin, shown.run, timeline, shown.now, is_real=is_real),
        **_errors(shown),
        **_payloads(shown),
    }


def _history(shown: Shown) -> dict[str, Any]:
    only_failed = shown.request.GET.get("only") == "failed"
    start = read_whole(shown.request.GET.get("start", ""), 10**9)
    tree = history_tree(
        shown.run,
        start=start,
        size=_MOST_PLACES,
        only_failed=only_failed,
        running=shown.running,
        entries=shown.progress.entries,
        open_keys=shown.progress.open_keys,
        with_payloads=shown.may_see_payloads,
    )
    return {
        "tree": tree,
        "roots": charts.shallow(tree.roots),
        "only_failed": only_failed,
        "replay_url": shown.admin.url("replay", shown.run.id),
    }


def _events(shown: Shown) -> dict[str, Any]:
    given = shown.request.GET
    is_newest_first = given.get("order") == "newest"
    after = EventKey.parse(given.get("after", ""))
    entries = shown.progress.entries
    page = list_events(shown.run, after=after, is_newest_first=is_newest_first, entries=entries)
    around = {"part": "events", **({"order": "newest"} if is_newest_first else {})}
    return {
        "events": page.events,
        "is_newest_first": is_newest_first,
        "next_events": f"?{urlencode({**around, 'after': str(page.next_key)})}" if page.next_key else "",
        "is_first_page": "after" not in given,
    }


def _values(shown: Shown) -> dict[str, Any]:
    return {"cards": cards_of(shown.admin, shown.run) if shown.may_see_payloads else []}


def _payloads(shown: Shown) -> dict[str, Any]:
    """Return the input and the output, in one bounded read."""
    if not shown.may_see_payloads:
        return {"input": None, "output": None}
    run = shown.run
    found = Run.objects.using(conf.DATABASE).filter(pk=run.pk)
    return {name: _payload(shown, name, read_within(found, name).get(run.pk, [None])) for name in ("input", "output")}


def _payload(shown: Shown, name: str, read: Any) -> PayloadView | None:
    if not isinstance(read, TooLarge):
        if read[0] is None:
            return None
        read = payload(shown.run.workflow, name, read[0], Place(shown.run.id, name))
    return view_of(shown.admin, shown.run.id, payload_title(name), read, {"of": name})


def _attempts(shown: Shown) -> dict[str, Any]:
    found = Attempt.objects.using(conf.DATABASE).filter(run=shown.run).order_by("-id")
    before = read_whole(shown.request.GET.get("before", ""))
    if before is not None:
        found = found.filter(id__lt=before)
    rows = list(found[: _MOST_ATTEMPTS + 1])
    attempts = rows[:_MOST_ATTEMPTS]
    return {
        "attempts": [
            (each, redacted_error(shown.run.workflow, each.error), shown.traceback(each.error)) for each in attempts
        ],
        "older": attempts[-1].pk if len(rows) > len(attempts) else None,
        "handlers": [] if before is not None else _failed_handlers(shown),
    }


def _failed_handlers(shown: Shown) -> list[dict[str, Any]]:
    """Return the steps whose rollback handlers have failed and not succeeded since, with the error of the last attempt.

    One statement; none if there can be no such step.
    """
    entries = Entry.objects.using(conf.DATABASE).filter(pk__in=shown.progress.open_keys)
    found = entries.filter(metadata__rollback_error__isnull=False).select_related("metadata")
    return [
        {
            "location": each.location,
            "attempts": handler_attempts(each),
            "error": redacted_error(shown.run.workflow, each.metadata.rollback_error),
            "traceback": shown.traceback(each.metadata.rollback_error),
        }
        for each in found.defer("output", "arguments").order_by("-ordinal")[:_MOST_ATTEMPTS]
    ]


def _messages(shown: Shown) -> dict[str, Any]:
    rows = message_rows(shown.admin, shown.run, with_payloads=shown.may_see_payloads)
    return {"messages_of_run": rows, "most_messages": MOST_MESSAGES, "are_closed": len(rows) > _MOST_OPEN}


def _logs(shown: Shown) -> dict[str, Any]:
    level, place = shown.request.GET.get("level", ""), shown.request.GET.get("place", "")[:1024]
    level = level if level in LEVELS else ""
    before = read_whole(shown.request.GET.get("before", ""))
    lines: list[LoggedLine] = []
    if shown.may_see_payloads:
        lines = read_logs(shown.run, level=level, place=place, before=before, limit=_MOST_LINES + 1)
    return {
        "log_lines": lines[-_MOST_LINES:],
        "older_logs": lines[1].id if len(lines) > _MOST_LINES else None,
        "log_levels": list(LEVELS),
        "log_level": level,
        "log_place": place,
        "log_query": f"&{urlencode({'level': level, 'place': place}, errors='backslashreplace')}",
        "are_logs_kept": is_kept(),
    }


def _children(shown: Shown) -> dict[str, Any]:
    given = shown.request.GET
    state = given.get("state", "")
    states = [state] if state in _STATES else []
    group = given.get("group", "").replace("\0", "")[:1024] or None
    page = list_children(
        shown.run.id, states=states, group=group, after=ChildCursor.parse(given.get("after", "")), within=shown.within
    )
    runs = [each.run for each in page.rows]
    paused, statuses = paused_of(runs, shown.now), statuses_of(runs)
    around = {"part": "children", **({"state": state} if states else {}), **({"group": group} if group else {})}
    following = {**around, "after": str(page.next_key)}
    return {
        "child_rows": [
            {
                "row": each,
                "url": shown.admin.url("change", each.run.id),
                "headline": explain(
                    each.run, shown.now, paused=paused.get(each.run.queue), within=shown.within
                ).headline,
                "status": statuses.get(each.run.id),
            }
            for each in page.rows
        ],
        "child_page": page,
        "child_state": state if states else "",
        "child_group": group or "",
        "next_children": "" if page.next_key is None else f"?{urlencode(following)}",
        "first_children": f"?{urlencode(around)}" if "after" in given else "",
    }


def _related(shown: Shown) -> dict[str, Any]:
    """Return the related runs, each with its relation to this one in words, and whether it can be compared."""
    run = shown.run
    runs = access.visible_runs(shown.request).only("id", "workflow", "state", "created_at", "summary")
    found = runs.in_bulk([each for each in (run.parent_id, run.replay_of_id) if each])
    related: list[tuple[str, Run, bool]] = []
    if run.parent_id in found:
        related.append((gettext("started by"), found[run.parent_id], False))
    if run.replay_of_id in found:
        related.append((gettext("repeats"), found[run.replay_of_id], True))
    related += [(gettext("started"), each, False) for each in _started(runs, shown)[:_MOST]]
    related += [(gettext("repeated by"), each, True) for each in runs.filter(replay_of=run).order_by()[:_MOST]]
    return {
        "related": [{"words": words, "run": each, "is_comparable": can_be} for words, each, can_be in related],
        "most_related": _MOST,
        "compare_url": shown.admin.url("compare", run.id),
    }


def _started(runs: RunQuerySet, shown: Shown) -> RunQuerySet:
    """Return the runs started by steps of the run; children are listed elsewhere.

    Not searched for if the run has more children than are counted.
    """
    if shown.children.is_capped:
        return runs.none()
    started = runs.filter(parent=shown.run).order_by()
    return started.filter(child_of__isnull=True) if shown.children or access.is_limited() else started


def _audit(shown: Shown) -> dict[str, Any]:
    found = OperatorAction.objects.using(conf.DATABASE).filter(run_id=shown.run.id).order_by("-created_at", "-id")
    actions = list(found[:_MOST])
    for each in actions if shown.within is not None else ():
        each.detail = detail_without_runs(each)
    return {"actions": actions, "most_actions": _MOST}


def _errors(shown: Shown) -> dict[str, Any]:
    """Return the run's error, the step that could not be undone, and the error of its handler."""
    run, stuck = shown.run, stuck_step(shown.run)
    of_handler = None if stuck is None else stuck.metadata.rollback_error
    return {
        "error": redacted_error(run.workflow, run.error),
        "traceback": shown.traceback(run.error),
        "stuck": stuck,
        "stuck_error": redacted_error(run.workflow, of_handler),
        "stuck_traceback": shown.traceback(of_handler),
    }


_PARTS: Final[Mapping[str, tuple[Any, Callable[[Shown], dict[str, Any]]]]] = {
    "timeline": (gettext_lazy("Timeline"), _timeline),
    "history": (pgettext_lazy("of a run", "History"), _history),
    "events": (gettext_lazy("Events"), _events),
    "payloads": (gettext_lazy("Input and output"), _payloads),
    "values": (gettext_lazy("Published values"), _values),
    "attempts": (gettext_lazy("Failed attempts"), _attempts),
    "messages": (gettext_lazy("Messages"), _messages),
    "logs": (gettext_lazy("Logs"), _logs),
    "children": (gettext_lazy("Children"), _children),
    "related": (gettext_lazy("Related"), _related),
    "audit": (gettext_lazy("Audit"), _audit),
}
PART_NAMES: Final = tuple(_PARTS)


#: The part of the page without a name in its address. It shows the values too.
_FIRST: Final = "timeline"
#: Parts without a tab if they have nothing.
_HIDDEN_IF_EMPTY: Final = frozenset({"children", "values"})


def part_of(request: HttpRequest) -> str:
    """Return the name of the part that an address asks for: the history if it names a place there, else the first
    one.
    """
    name = request.GET.get("part", "")
    if name not in _PARTS and ("start" in request.GET or "only" in request.GET):
        return "history"
    return name if name in _PARTS else "timeline"


def parts_of(shown: Shown) -> tuple[list[Part], dict[str, Any]]:
    """Return the tabs, and the data of the shown part. One statement counts what the run's row does not say."""
    current = part_of(shown.request)
    counts = {
        "history": thousands(shown.progress.entries),
        "attempts": thousands(shown.progress.failed_attempts),
        "messages": thousands(shown.run.message_count),
        "children": str(shown.children.total) if shown.children else "",
        **_counted(shown),
    }
    parts = [
        Part(
            name=name,
            title=title,
            count=counts.get(name, ""),
            query="?" if name == "timeline" else f"?{urlencode({'part': name})}",
            is_current=name == current,
        )
        for name, (title, _) in _PARTS.items()
        if name not in _HIDDEN_IF_EMPTY or counts.get(name) or name == current
    ]
    part = {"part": current, "part_template": f"durable/admin/_run_{current}.html", **_PARTS[current][1](shown)}
    if current == _FIRST and counts.get("values"):
        part |= _values(shown)
    return parts, part


def _counted(shown: Shown) -> dict[str, str]:
    run = shown.run
    runs = access.visible_runs(shown.request)
    actions = OperatorAction.objects.using(conf.DATABASE).filter(run_id=run.id).order_by("-created_at", "-id")
    lines = LogLine.objects.using(conf.DATABASE).filter(run=run).order_by("id")
    # a search for the few entries of this kind would read all of a long history
    values = [published_of(run)] if shown.progress.entries <= history_counts.LONG else []
    found = count_capped([_started(runs, shown), runs.filter(replay_of=run).order_by(), actions, lines, *values], _CAP)
    ids = [each for each in (run.parent_id, run.replay_of_id) if each is not None]
    around = sum(each in access.existing(shown.request, ids) for each in ids)
    related = found[0].number + found[1].number + around
    return {
        "related": str(Count(number=related, is_capped=found[0].is_capped or found[1].is_capped)),
        "audit": str(found[2]),
        "logs": str(found[3]),
        "values": str(found[4]) if values and found[4].number else "",
    }
