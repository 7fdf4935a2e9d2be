"""`durable show --follow`: print the changes of a run as they happen."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime

from django.utils import timezone

from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.cli.subcommand import found_run
from durable.conf import conf
from durable.core.records import ENDED, RunState
from durable.inspection.database import reading
from durable.inspection.explain_states import explain
from durable.inspection.progress import progress_of
from durable.inspection.wording import display_location
from durable.models import Entry, Run

Seen = dict[str, tuple[str, int]]  # location: status, attempts


def follow(run: Run, output: Output, interval: float) -> int:
    """Print a line for each change after `run` was read, until it has ended; return the exit status of its end."""
    seen, revision, shown = _entries(run), "", _shown(run, timezone.now())
    while run.state not in ENDED:
        time.sleep(interval)
        now = timezone.now()
        with reading():
            run = found_run(run.id)
            newest = progress_of(run).revision
            if newest == revision:
                continue
            revision, entries = newest, _entries(run)
        for location, (status, attempts) in _changes(seen, entries):
            _print_entry(output, now, location, status, attempts)
        seen = entries
        if (current := _shown(run, now)) != shown:
            shown = current
            _print_run(output, now, run, current)
    return Exit.OK if run.state == RunState.COMPLETED else Exit.REFUSED


def _entries(run: Run) -> Seen:
    """Return the skeleton of the history, in the order in which the entries began."""
    found = Entry.objects.using(conf.DATABASE).with_metadata_of(run.pk).order_by("ordinal")
    rows = found.values_list("location", "metadata__status", "metadata__attempts")
    return {location: (status, attempts) for location, status, attempts in rows}


def _changes(before: Seen, after: Seen) -> Iterator[tuple[str, tuple[str, int]]]:
    return ((location, entry) for location, entry in after.items() if before.get(location) != entry)


def _shown(run: Run, now: datetime) -> tuple[str, str]:
    return run.state, explain(run, now).headline if run.state != RunState.RUNNING else ""


def _print_entry(output: Output, now: datetime, location: str, status: str, attempts: int) -> None:
    if output.format == "json":
        output.json({"at": now.isoformat(), "location": location, "status": status, "attempts": attempts})
        return
    again = f", attempt {attempts}" if attempts > 1 else ""
    output.line(f"{timezone.localtime(now):%H:%M:%S}  {display_location(location)}: {status}{again}")
    output.stdout.flush()


def _print_run(output: Output, now: datetime, run: Run, shown: tuple[str, str]) -> None:
    state, what = shown
    if output.format == "json":
        output.json({"at": now.isoformat(), "run": run.id, "state": state, "what": what})
        return
    output.line(f"{timezone.localtime(now):%H:%M:%S}  run is {state}{f': {what}' if what else ''}")
    output.stdout.flush()
