"""The subcommands of lists: `durable queues`, `workers`, `running`, `limits` and others.

`durable.listings` declares what is listed, and its JSON, which is REST's. What a table of it shows is said here.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from operator import attrgetter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from django.core.management.base import CommandError
from django.utils import timezone

from durable.cli.arguments import add_format, number_up_to
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.inspection import InvalidCursorError, reading
from durable.inspection.humanize import byte_size, moment, relative, span
from durable.inspection.wording import display_place
from durable.listings.causes import CAUSES
from durable.listings.listing import MOST_LISTED, Listing, Page
from durable.listings.shapes import Seen, data_of
from durable.listings.work import LIMITS, QUEUES, RATES, RUNNING, WORKERS


@dataclass(frozen=True, slots=True, kw_only=True)
class ListCommand:
    """The subcommand of a listing.

    `table` has by heading what a cell shows: the way to a value, or a function of the row and the moment. `rows` makes
    rows of what is listed. `key` is the way to what `-o ids` prints, "" without this format. `beside` says more, and
    returns the exit status. `empty` is said where the table is empty. `also` are flags of the command line alone, which
    `asks` reads.
    """

    name: str
    help: str
    listing: Listing
    table: Mapping[str, str | Callable[[Any, datetime], Cell | object]]
    rows: Callable[[Any], Iterable[Any]] = lambda item: (item,)
    key: str = ""
    noun: str = ""
    empty: str = ""
    also: Mapping[str, str] = field(default_factory=dict)
    asks: Callable[[Namespace], dict[str, Any]] = lambda _options: {}
    beside: Callable[[Output, Page, datetime], int] = lambda *_: Exit.OK

    @property
    def subcommand(self) -> Subcommand:
        """The subcommand."""
        return Subcommand(name=self.name, help=self.help, configure=self._configure, run=self._run)

    def _configure(self, parser: ArgumentParser) -> None:
        if self.listing.missing:
            parser.add_argument("name", nargs="?", default="", metavar="NAME", help="show this one alone")
        for name, does in self.also.items():
            parser.add_argument(f"--{name}", action="store_true", help=does)
        if self.listing.is_paged:
            parser.add_argument(
                "--limit",
                type=number_up_to(MOST_LISTED),
                default=50,
                metavar="N",
                help=f"1 to {MOST_LISTED} {self.noun} (default: 50)",
            )
            parser.add_argument("--cursor", help="go on where a page ended")
        add_format(parser, *(() if self.key else ("table", "json")))

    def _run(self, options: Namespace, output: Output) -> int:
        seen = Seen(now=timezone.now())
        named, paged = ("name",) if self.listing.missing else (), ("limit", "cursor") if self.listing.is_paged else ()
        asked = {**{each: getattr(options, each) for each in named + paged}, **self.asks(options)}
        try:
            with reading():
                page = self.listing.read(seen, **asked)
        except InvalidCursorError as error:
            raise CommandError(str(error)) from None
        if asked.get("name") and not page.results:
            raise CommandError(refused(self.listing, asked["name"]), returncode=Exit.REFUSED)
        for each in page.results if output.format != "table" else ():
            if output.format == "json":
                output.json(data_of(self.listing.item, each, seen))
            else:
                output.id(attrgetter(self.key)(each))
        if output.format == "table":
            self._print(output, page, seen.now)
        return self.beside(output, page, seen.now)

    def _print(self, output: Output, page: Page, now: datetime) -> None:
        rows = [row for each in page.results for row in self.rows(each)]
        output.table([*self.table], ([_cell(each, row, now) for each in self.table.values()] for row in rows))
        if page.next_cursor is not None:
            output.say(f"There are more: --cursor {page.next_cursor}, or --limit")
        elif not page.results and self.empty:
            output.say(self.empty)


def refused(listing: Listing, name: str) -> str:
    """Return what is said of a name that nothing listed has, as the end of a sentence."""
    text = listing.missing.format(name=name)
    return f"{text[:1].lower()}{text[1:].removesuffix('.')}"


def _cell(shows: str | Callable[[Any, datetime], Cell | object], row: Any, now: datetime) -> Cell | object:
    found = shows(row, now) if callable(shows) else attrgetter(shows)(row)
    return "" if found is None else found


def _ago(since: datetime | None, now: datetime) -> str:
    return "" if since is None else span((now - since).total_seconds())


# -- queues and workers

#: By the state of a worker, the state of a run that has its colour.
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
        "STATE": lambda queue, _now: Cell("paused", "paused") if queue.is_paused else "",
        "DUE": "due",
        "OLDEST": lambda queue, now: _ago(queue.oldest_due_at, now),
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
        "QUEUES": lambda worker, _now: " ".join([*worker.queues, *(["*"] if worker.serves_all else [])]),
        "STATE": lambda worker, _now: Cell(worker.state, _COLOURS.get(worker.state, "")),
        "BUILD": "build",
        "UP": lambda worker, now: "" if worker.is_dead else _ago(worker.started_at, now),
        "MEMORY": lambda worker, _now: "" if worker.memory is None else byte_size(worker.memory),
        "PASSES": "passes",
        "IN 5 M": "recent_passes",
        "SEEN": lambda worker, now: relative(worker.last_heartbeat, now) if worker.last_heartbeat else "",
        "SLOTS": lambda worker, _now: "" if worker.slots is None else f"{len(worker.runs)}/{worker.slots}",
        "RUNS": lambda worker, _now: " ".join(run.id for run in worker.runs),
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
        "STEP": lambda step, _now: _place(step),
        "ATTEMPT": lambda step, _now: step.attempt or "",
        "FOR": lambda step, _now: f"{span(step.seconds)}{', hung' if step.is_hung else ''}",
        "COMPARED WITH": lambda step, _now: step.overrun if step.left else step.limits,
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
        "AT ONCE": lambda row, _now: _in_force(row.limit, row.limit.at_once),
        "HELD": "key.held",
        "WAITING": "key.waiting",
        "OLDEST": lambda row, now: _ago(row.key.oldest_at, now),
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
        "RATE": lambda row, _now: _in_force(row.limit, row.limit.rate),
        "WAITING": "key.waiting",
        "NEXT": lambda row, now: row.key.next_at and moment(row.key.next_at, now),
        "CLOSED UNTIL": lambda row, now: _closed(row.key, now),
        "REFUSED STARTS": lambda row, now: _refused(row.key, now),
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
    help="List the causes of failed runs, the newest first.",
    listing=CAUSES,
    also={"muted": "muted causes too"},
    asks=lambda options: {"muted": None if options.muted else False},
    table={
        "CAUSE": "fingerprint",
        "RUNS": "count",
        "PLACE": lambda cause, _now: display_place(cause.place) or "the workflow's own code",
        "ERROR": lambda cause, _now: f"{cause.error_type}: {cause.pattern}" if cause.pattern else cause.error_type,
        "WORKFLOWS": lambda cause, _now: ", ".join(cause.workflows),
        "SINCE": lambda cause, now: cause.since and relative(cause.since, now),
        "LAST": lambda cause, now: cause.last_at and relative(cause.last_at, now),
    },
    key="fingerprint",
    empty="No run is failed.",
    beside=_noted,
)

#: By name.
LISTS: Final = {each.name: each.subcommand for each in (_QUEUES, _WORKERS, _RUNNING, _LIMITS, _RATES, _CAUSES)}
