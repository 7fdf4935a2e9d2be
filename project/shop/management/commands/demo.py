"""`manage.py demo`: orders flow through real workers, one of which is killed; then the shop is served.

Reads the arguments and says what the exit code is; `project.demo` does the rest.
"""

import argparse
import signal
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

__all__ = ["Command"]

HIGHEST_PORT = 65_535


class Command(BaseCommand):
    help = "Run the shop with real workers, kill one, flush Redis, check the rows, then serve shop and admin."
    requires_system_checks: list[str] = []  # the database they ask for is started by the command itself

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="end after the check; exit 0 if all held")
        parser.add_argument("--orders", type=_some, default=12, metavar="N", help="how many orders flow (12)")
        parser.add_argument(
            "--port", type=_port, default=8000, help="where to serve; if taken, the next free one (8000)"
        )

        parser.add_argument(
            "--directory", type=Path, help="where to keep database and logs (var/demo; with --once a temporary one)"
        )

    def handle(self, *args: Any, once: bool, orders: int, port: int, directory: Path | None, **options: Any) -> None:
        from project.demo import environment

        try:
            if environment.is_inside():
                from project.demo.story import tell

                code = 0 if tell(count=orders, port=None if once else port) else 1
            else:
                arguments = ["--orders", str(orders), "--port", str(port), *(["--once"] if once else [])]
                place = directory or (None if once else settings.VAR_DIR / "demo")
                code = environment.run_inside(arguments, keep_in=place.resolve() if place else None)
        except KeyboardInterrupt:
            self.stderr.write("Interrupted.")
            code = 128 + signal.SIGINT
        sys.exit(code)


def _some(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1 order")
    return number


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"a port is a number from 1 to {HIGHEST_PORT}")
    return number
