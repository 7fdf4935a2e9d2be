"""The subcommands of lists: `durable queues`, `workers`, `running`, `limits` and others; and the `note` on a cause.

`durable.listings` declares the listings and their JSON, which is the same as REST's. This module declares their tables.
"""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.output import Cell, Exit, Output
from durable.cli.subcommand import (
    ACTING,
    RUN,
    Argument,
    Subcommand,
    acting,
    argument,
    filters,
    formats,
    found_run,
    shell_actor,
    subcommand,
    whole_number,
)
from durable.inspection.children import CountedChildren, count_children
from durable.inspection.humanize import byte_size, moment, relative, shortened, span, thousands
from durable.inspection.pagination import InvalidCursorError
from durable.inspection.reading import from_replica, reading
from durable.inspection.run_facts import is_known_model
from durable.inspection.undone import state_word
from durable.inspection.wording import display_place, told_of_source
from durable.listings.events import EVENT_WAITS, EVENTS
from durable.listings.history import VALUES
from durable.listings.listing import MOST_LISTED, Listing, Page
from durable.listings.people import QUESTIONS
from durable.listings.runs import CHILDREN, RUNS
from durable.listings.shapes import Seen, data_of
from durable.listings.work import CAUSES, LIMITS, QUEUES, RATES, RUNNING, WORKERS
from durable.operations.causes import note

SHOWN: Final = 50  # of a table without `--limit`


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCommand:
    """The subcommand of a listing.

    `table` has by heading what a cell shows: the way to a value, or a function of the row and of what is seen. `rows`
    makes rows of what is listed. `key` is the way to what `-o ids` prints, "" without this format. `above` prints what
    stands above a table. `beside` says more, and returns the exit status. `empty` is said where the table is empty.

    `asks` reads the `arguments`, which the command line alone has. A list that `is_whole` is printed to its
    end, unless a table or `--limit` ends it; without it a page is. Only with `payloads` the JSON has tracebacks.
    """

    name: str
    help: str
    listing: Listing
    table: Mapping[str, str | Callable[[Any, Any], Cell | object]]
    rows: Callable[[Any], Iterable[Any]] = lambda item: (item,)
    key: str = ""
    noun: str = ""
    empty: str = ""
    arguments: Sequence[Argument] = ()
    asks: Callable[[Namespace], dict[str, Any]] = lambda _options: {}
    above: Callable[[Output, Mapping[str, Any]], None] = lambda _output, _asked: None
    beside: Callable[[Output, Page, datetime], int] = lambda *_: Exit.OK
    is_whole: bool = False
    payloads: bool = True

    @property
    def subcommand(self) -> Subcommand:
        return Subcommand(self.name, self.help, self._run, [*self.arguments, *self._arguments()])

    def _arguments(self) -> Iterator[Argument]:
        if self.listing.missing:
            yield argument("name", nargs="?", default="", metavar="NAME", help="show this one alone")
        yield filters(*self.listing.filters)
        if self.is_whole:
            what = f"how many (default: {SHOWN} in a table, else all)"
            yield argument("-n", "--limit", type=int, metavar="N", help=what)
        elif self.listing.is_paged:
            what = f"1 to {MOST_LISTED} {self.noun} (default: {SHOWN})"
            yield argument("--limit", type=whole_number(most=MOST_LISTED), default=SHOWN, metavar="N", help=what)
        if self.listing.is_paged:
            yield argument("--cursor", help="go on where a list of the same filters has stopped")
        yield formats(*(() if self.key else ("table", "json")))

    def _run(self, options: Namespace, output: Output) -> int:
        with from_replica(wanted=not self.listing.of_run):
            status = self._print(options, output)
            if output.format == "table" and (text := told_of_source()):
                output.say(text)
            return status

    def _print(self, options: Namespace, output: Output) -> int:
        seen, asked = Seen(now=timezone.now(), payloads=self.payloads), self._asked(options)
        rows: list[list[Cell | object]] = []
        page = Page(results=())
        for page in self._pages(seen, asked, options, output):
            with reading():
                shown = list(self._shown(page, page.seen or seen, output.format))
            if output.format == "table":
                rows += shown
            for each in shown if output.format != "table" else ():
                (output.json if output.format == "json" else output.id)(each)
        if asked.get("name") and not page.results:
            raise CommandError(refused(self.listing, asked["name"]), returncode=Exit.REFUSED)
        if output.format == "table":
            self.above(output, asked)
            output.table([*self.table], rows)
            self._say(output, page, is_empty=not rows)
        return self.beside(output, page, seen.now)

    def _shown(self, page: Page, seen: Seen, format: str) -> Iterator[Any]:
        for each in page.results:
            if format == "table":
                yield from ([_cell(cell, row, seen) for cell in self.table.values()] for row in self.rows(each))
            else:
                yield data_of(self.listing.item, each, seen) if format == "json" else attrgetter(self.key)(each)

    def _asked(self, options: Namespace) -> dict[str, Any]:
        asked = {each.name: getattr(options, each.name) for each in self.listing.filters}
        asked = {name: each for name, each in asked.items() if each is not None} | self.asks(options)
        return asked | ({"name": options.name} if self.listing.missing else {})

    def _pages(self, seen: Seen, asked: Mapping[str, Any], options: Namespace, output: Output) -> Iterator[Page]:
        """Yield as many pages as were requested. A table is one page, which may be combined from several."""
        is_table, given = output.format == "table", getattr(options, "limit", None)
        if given is not None and given < 1:
            raise CommandError(f"--limit must be at least 1, not {given}", returncode=Exit.USAGE)
        left = given or (SHOWN if is_table else None)
        paging = {"cursor": options.cursor} if self.listing.is_paged else {}
        while True:
            if self.listing.is_paged:
                paging["limit"] = min(left or MOST_LISTED, MOST_LISTED)
            try:
                with reading():
                    page = self.listing.read(seen, **asked, **paging)
            except InvalidCursorError as error:
                raise CommandError(f"--cursor: {error}", returncode=Exit.USAGE) from error
            except ValueError as error:
                raise CommandError(str(error), returncode=Exit.USAGE) from error
            yield page
            left = None if left is None else left - len(page.results)
            paging["cursor"] = page.next_cursor
            if page.next_cursor is None or not self.is_whole or left == 0 or (is_table and page.is_window):
                return

    def _say(self, output: Output, page: Page, *, is_empty: bool) -> None:
        if page.is_window:
            output.say(f"Not all {self.noun} were looked through. Go on: --cursor {page.next_cursor}")
        elif page.next_cursor is not None:
            output.say(f"There are more: --cursor {page.next_cursor}, or --limit")
        elif is_empty and self.empty:
            output.say(self.empty)


def refused(listing: Listing, name: str) -> str:
    """Return the message about a name that is not in the listing, as the end of a sentence."""
    text = listing.missing.format(name=name)
    return f"{text[:1].lower()}{text[1:].removesuffix('.')}"


def _cell(shows: str | Callable[[Any, Any], Cell | object], row: Any, seen: Seen) -> Cell | object:
    found = shows(row, seen) if callable(shows) else attrgetter(shows)(row)
    return "" if found is None else found


def _ago(since: datetime | None, now: datetime) -> str:
    return "" if since is None else span((now - since).total_seconds())


# -- runs and children


def counted(counts: CountedChildren) -> str:
    """Return the numbers in words, "1,000: 954 completed, 46 failed"; "" without children."""
    if not counts:
        return ""
    states = ", ".join(f"{thousands(number)} {state}" for state, number in counts.states.items())
    return f"{counts.total}: {states}"


def _what(run: Any, seen: Any) -> str:
    status = seen.statuses.get(run.id)
    headline: str = seen.explanation(run).headline
    return headline if status is None else f"{headline}: {status.words}"


def _in_one_line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _of_parent(options: Namespace) -> dict[str, Any]:
    with reading():
        return {"run": found_run(options.id)}


def _children(output: Output, asked: Mapping[str, Any]) -> None:
    with reading():
        output.line(counted(count_children(asked["run"].id)) or "no children")


def _search(options: Namespace) -> dict[str, Any]:
    """Return the text that is searched for. An empty list would hide that the name of a model is misspelled."""
    model = (options.about or "").partition(":")[0]
    if "." in model and not is_known_model(model):
        raise CommandError(
            f"--about: there is no model {model[:64]!r}, and no run is about one of it", returncode=Exit.USAGE
        )
    return {"search": options.search}


_RUNS: Final = ListCommand(
    name="list",
    help="List runs, the newest first unless `--sort` says otherwise.",
    listing=RUNS,
    arguments=[
        argument("search", nargs="?", default="", help="an id, the beginning of one, or a part of an error's text")
    ],
    asks=_search,
    table={
        "ID": "id",
        "WORKFLOW": "workflow",
        "STATE": lambda run, _seen: Cell(state_word(run), run.state),
        "STARTED": lambda run, seen: relative(run.created_at, seen.now),
        "WHAT": lambda run, seen: _what(run, seen),
    },
    key="id",
    noun="runs",
    empty="No runs match.",
    is_whole=True,
    payloads=False,
)
_CHILDREN: Final = ListCommand(
    name="children",
    help="List the children of a run, and count them by state.",
    listing=CHILDREN,
    arguments=[argument("id", metavar="ID", help="the parent's id")],
    asks=_of_parent,
    above=_children,
    table={
        "ID": "run.id",
        "WORKFLOW": "run.workflow",
        "STATE": lambda child, _seen: Cell(state_word(child.run), child.run.state),
        "LOCATION": "location",
        "STARTED": lambda child, seen: relative(child.run.created_at, seen.now),
        "WHAT": lambda child, seen: _what(child.run, seen),
    },
    key="run.id",
    noun="children",
    is_whole=True,
    payloads=False,
)

_VALUES: Final = ListCommand(
    name="values",
    help="List what a run has published with `ctx.publish`, the newest value of each name.",
    listing=VALUES,
    arguments=[RUN],
    asks=_of_parent,
    table={
        "NAME": "name",
        "VALUE": lambda each, _seen: (
            "(too large for a list)" if each.is_left_out else shortened(_in_one_line(each.value))
        ),
        "PUBLISHED": lambda each, seen: relative(each.at, seen.now),
    },
    key="name",
    empty="It has published nothing.",
)

# -- questions to people

_QUESTIONS: Final = ListCommand(
    name="questions",
    help="List the open questions to people that a user may answer, the oldest first.",
    listing=QUESTIONS,
    arguments=[argument("user", metavar="USER", help="the name of the user who is asked")],
    asks=lambda options: {"by": shell_actor(options.user, argument="USER").user},
    table={
        "ID": "id",
        "QUESTION": "name",
        "ABOUT": "about",
        "RUN": "run_id",
        "ASKED": lambda question, seen: relative(question.asked_at, seen.now),
        "OPEN FOR": lambda question, seen: "" if question.expires_at is None else _ago(seen.now, question.expires_at),
        "CLAIMED BY": "claimed_by",
    },
    key="id",
    noun="questions",
    empty="No question waits for this user.",
)

# -- queues and workers

#: By state of a worker, the state of a run with the same colour.
_COLOURS: Final = {"busy": "running", "dead": "failed"}


def _paused(output: Output, page: Page, now: datetime) -> int:
    for each in page.results if output.format == "table" else ():
        if each.hold is not None:
            who = f" by {each.hold.held_by}" if each.hold.held_by else ""
            why = f": {each.hold.reason}" if each.hold.reason else ""
            output.say(f"{each.name}: paused {relative(each.hold.held_at, now)}{who}{why}")
    return Exit.OK


def _problem(output: Output, page: Page, _now: datetime) -> int:
    if page.about.problem:
        output.complain(page.about.problem)
        return Exit.REFUSED
    if page.about.is_capped:
        output.say("There are more than are shown.")
    if not page.results:
        output.say("There are no workers: manage.py durable_worker starts some.")
    return Exit.OK


_QUEUES: Final = ListCommand(
    name="queues",
    help="List the queues: what is due in each, since when, who serves it, and whether it is paused.",
    listing=QUEUES,
    table={
        "QUEUE": "name",
        "STATE": lambda queue, _seen: Cell("paused", "paused") if queue.is_paused else "",
        "DUE": "due",
        "OLDEST": lambda queue, seen: _ago(queue.oldest_due_at, seen.now),
        "IN HAND": "in_hand",
        "IN/MIN": "came",
        "OUT/MIN": "went",
        "WORKERS": "workers",
    },
    beside=_paused,
)
_WORKERS: Final = ListCommand(
    name="workers",
    help="List the workers, the queues they serve and the runs they hold.",
    listing=WORKERS,
    table={
        "WORKER": "name",
        "HOST": "host",
        "PID": "pid",
        "QUEUES": lambda worker, _seen: " ".join([*worker.queues, *(["*"] if worker.serves_all else [])]),
        "STATE": lambda worker, _seen: Cell(worker.state, _COLOURS.get(worker.state, "")),
        "BUILD": "build",
        "UP": lambda worker, seen: "" if worker.is_dead else _ago(worker.started_at, seen.now),
        "MEMORY": lambda worker, _seen: "" if worker.memory is None else byte_size(worker.memory),
        "PASSES": "passes",
        "IN 5 M": "recent_passes",
        "SEEN": lambda worker, seen: relative(worker.last_heartbeat, seen.now) if worker.last_heartbeat else "",
        "SLOTS": lambda worker, _seen: "" if worker.slots is None else f"{len(worker.runs)}/{worker.slots}",
        "RUNS": lambda worker, _seen: " ".join(run.id for run in worker.runs),
    },
    beside=_problem,
)


def _place(step: Any) -> str:
    if step.left:
        return f"{step.location or 'the workflow'} (has left {step.left})"
    return f"{step.location} (rollback)" if step.is_rollback else str(step.location)


_RUNNING: Final = ListCommand(
    name="running",
    help="List the steps that run now, the oldest first.",
    listing=RUNNING,
    table={
        "RUN": "run_id",
        "WORKFLOW": "workflow",
        "STEP": lambda step, _seen: _place(step),
        "ATTEMPT": lambda step, _seen: step.attempt or "",
        "FOR": lambda step, _seen: f"{span(step.seconds)}{', hung' if step.is_hung else ''}",
        "COMPARED WITH": lambda step, _seen: step.overrun if step.left else step.limits,
        "WORKER": "worker",
    },
    key="run_id",
    noun="steps",
    empty="No step has run for more than a second.",
)

# -- limits and rates: a row for each key


class _Keyed(NamedTuple):
    limit: Any
    key: Any


_NO_KEY: Final = SimpleNamespace(
    key="", held=0, waiting=0, oldest_at=None, next_at=None, closing=None, last_refused=None
)


def _keyed(limit: Any) -> list[_Keyed]:
    return [_Keyed(limit, key) for key in limit.keys or [_NO_KEY]]


def _in_force(limit: Any, number: object) -> str:
    return f"{number} (the code says {limit.code_says})" if limit.is_overridden else str(number)


def _closed(key: Any, now: datetime) -> str:
    return "" if key.closing is None else f"{moment(key.closing.until, now)} by {key.closing.by}"


def _refused(key: Any, now: datetime) -> str:
    return "" if key.last_refused is None else f"{key.refused:,}, last {moment(key.last_refused.at, now)}"


_LIMITS: Final = ListCommand(
    name="limits",
    help="List the limits: how many slots are held of each key, how many runs wait, and for how long.",
    listing=LIMITS,
    rows=_keyed,
    table={
        "LIMIT": "limit.name",
        "KEY": "key.key",
        "AT ONCE": lambda row, _seen: _in_force(row.limit, row.limit.at_once),
        "HELD": "key.held",
        "WAITING": "key.waiting",
        "OLDEST": lambda row, seen: _ago(row.key.oldest_at, seen.now),
    },
    empty="There is no limit yet: one appears when a run first wants a slot of it.",
)
_RATES: Final = ListCommand(
    name="rates",
    help="List the rates of limits: how many attempts wait, until when a key is reserved, and what is closed.",
    listing=RATES,
    rows=_keyed,
    table={
        "LIMIT": "limit.name",
        "KEY": "key.key",
        "RATE": lambda row, _seen: _in_force(row.limit, row.limit.rate),
        "WAITING": "key.waiting",
        "NEXT": lambda row, seen: row.key.next_at and moment(row.key.next_at, seen.now),
        "CLOSED UNTIL": lambda row, seen: _closed(row.key, seen.now),
        "REFUSED STARTS": lambda row, seen: _refused(row.key, seen.now),
    },
    empty="There is no rate yet: one appears when an attempt first wants units of it.",
)

# -- causes


def _noted(output: Output, page: Page, now: datetime) -> int:
    for each in page.results if output.format == "table" else ():
        if each.noted_at is not None:
            who = f" by {each.noted_by}" if each.noted_by else ""
            output.say(f"{each.fingerprint}: noted {relative(each.noted_at, now)}{who}: {each.note}")
    return Exit.OK


_CAUSES: Final = ListCommand(
    name="causes",
    help="List the causes of failed and held runs, the newest first.",
    listing=CAUSES,
    arguments=[argument("--muted", action="store_true", help="muted causes too")],
    asks=lambda options: {"muted": None if options.muted else False},
    table={
        "CAUSE": "fingerprint",
        "RUNS": lambda cause, _seen: cause.numbers if cause.held else cause.count,
        "PLACE": lambda cause, _seen: display_place(cause.place) or "the workflow's own code",
        "ERROR": lambda cause, _seen: f"{cause.error_type}: {cause.pattern}" if cause.pattern else cause.error_type,
        "WORKFLOWS": lambda cause, _seen: ", ".join(cause.workflows),
        "SINCE": lambda cause, seen: cause.since and relative(cause.since, seen.now),
        "LAST": lambda cause, seen: cause.last_at and relative(cause.last_at, seen.now),
    },
    key="fingerprint",
    empty="No run is failed or held.",
    beside=_noted,
)


@subcommand(
    "note",
    "Tell other operators something about a cause of failed runs.",
    argument("cause", metavar="CAUSE", help="the cause, as `durable causes` lists it"),
    argument("text", metavar="TEXT", help='the note, "" for none'),
    ACTING,
)
def note_command(options: Namespace, output: Output) -> int:
    with acting(options):
        note(options.cause, options.text)
    output.say("The note is saved." if options.text.strip() else "The cause has no note now.")
    return Exit.OK


_EVENTS: Final = ListCommand(
    name="events",
    help="List the published events that are still kept, the newest first, and who got each.",
    listing=EVENTS,
    noun="events",
    table={
        "EVENT": "event.name",
        "KEY": "event.key",
        "ID": "event.event_id",
        "PUBLISHED": lambda each, seen: relative(each.event.published_at, seen.now),
        "GOT IT": "event.delivered",
        "WAITING": "waiting",
        "RUNS": lambda each, _seen: " ".join([*each.started, *each.got, *(["..."] if each.more else [])]),
    },
    key="event.event_id",
    empty="There are no events.",
)
_EVENT_WAITS: Final = ListCommand(
    name="event-waits",
    help="List the runs that wait for events, the newest wait first.",
    listing=EVENT_WAITS,
    noun="waits",
    table={"RUN": "run_id", "WORKFLOW": "run.workflow", "PLACE": "location", "EVENT": "name", "KEY": "key"},
    key="run_id",
    empty="No run waits for an event.",
)

#: By name.
LISTS: Final = {
    each.name: each.subcommand
    for each in (
        *(_RUNS, _CHILDREN, _VALUES, _QUESTIONS, _QUEUES, _WORKERS, _RUNNING, _LIMITS, _RATES, _CAUSES),
        *(_EVENTS, _EVENT_WAITS),
    )
}
