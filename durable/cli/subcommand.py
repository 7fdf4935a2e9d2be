"""A subcommand: a name, its arguments, and its function."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass

from django.core.management.base import CommandError

from durable.cli.exit_codes import Exit
from durable.cli.output import Output
from durable.conf import conf
from durable.models import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """A subcommand of `manage.py durable`.

    `help` is a sentence. `configure` adds the arguments. `run` performs the subcommand and returns the exit status.
    `alias` is a second name, or "".
    """

    name: str
    help: str
    configure: Callable[[ArgumentParser], None]
    run: Callable[[Namespace, Output], int]
    alias: str = ""


def found_run(run_id: str) -> Run:
    """Return the run's row. Raises CommandError if there is no such run."""
    run = Run.objects.using(conf.DATABASE).with_side_rows().filter(pk=run_id).first()
    if run is None:
        raise CommandError(f'there is no run "{run_id}"', returncode=Exit.REFUSED)
    return run
