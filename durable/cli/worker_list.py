"""`durable workers`: list the workers."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import asdict
from typing import Final

from django.utils import timezone

from durable.cli.arguments import add_format
from durable.cli.exit_codes import Exit
from durable.cli.output import Cell, Output
from durable.cli.subcommand import Subcommand
from durable.inspection import Workers, worker_overview
from durable.inspection.humanize import byte_size, relative, span

#: By the state of a worker, the state of a run that has its colour.
_COLOURS: Final = {"busy": "running", "dead": "failed"}


def _configure_workers(parser: ArgumentParser) -> None:
    add_format(parser, "table", "json")


def _workers(_options: Namespace, output: Output) -> int:
    found = worker_overview()
    if output.format == "json":
        for worker in found.workers:
            output.json(_as_data(asdict(worker)))
    else:
        _print_workers(output, found)
    if found.problem:
        output.complain(found.problem)
        return Exit.REFUSED
    if found.is_capped:
        output.say("There are more than are shown.")
    if not found.workers:
        output.say("There are no workers: manage.py durable_worker starts some.")
    return Exit.OK


def _as_data(value: object) -> object:
    if isinstance(value, dict):
        return {name: _as_data(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_as_data(each) for each in value]
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _print_workers(output: Output, found: Workers) -> None:
    now = timezone.now()
    output.table(
        [
            "WORKER",
            "HOST",
            "PID",
            "QUEUES",
            "STATE",
            "BUILD",
            "UP",
            "MEMORY",
            "PASSES",
            "IN 5 M",
            "SEEN",
            "SLOTS",
            "RUNS",
        ],
        (
            (
                worker.name,
                worker.host,
                worker.pid,
                " ".join([*worker.queues, *(["*"] if worker.serves_all else [])]),
                Cell(worker.state, _COLOURS.get(worker.state, "")),
                worker.build,
                span((now - worker.started_at).total_seconds()) if worker.started_at and not worker.is_dead else "",
                "" if worker.memory is None else byte_size(worker.memory),
                "" if worker.passes is None else worker.passes,
                "" if worker.recent_passes is None else worker.recent_passes,
                relative(worker.last_heartbeat, now) if worker.last_heartbeat else "",
                "" if worker.slots is None else f"{len(worker.runs)}/{worker.slots}",
                " ".join(run.id for run in worker.runs),
            )
            for worker in found.workers
        ),
    )


WORKERS = Subcommand(
    name="workers",
    help="List the workers, the queues they serve and the runs they hold.",
    configure=_configure_workers,
    run=_workers,
)
