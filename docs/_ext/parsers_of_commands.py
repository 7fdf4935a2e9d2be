"""The parser of `manage.py durable_worker`, by a name that the directive `sphinx_argparse_cli` can import.

A parser that Django makes also has Django's own options (`--settings`, `--verbosity`, ...): they are left out here, so that
the reference shows what is durable's.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from typing import Any, Final

from django.core.management import load_command_class
from django.core.management.base import BaseCommand

__all__ = ["durable_worker", "setup"]

INTERNAL: Final = frozenset({"as_child"})  # what the command calls itself with


def setup(_app: Any) -> dict[str, bool]:
    """Sphinx's hook: there is nothing to register."""
    return {"parallel_read_safe": True}


def durable_worker() -> ArgumentParser:
    """The parser of `manage.py durable_worker`."""
    parser: ArgumentParser = load_command_class("durable", "durable_worker").create_parser(
        "manage.py", "durable_worker"
    )
    of_django = {action.dest for action in BaseCommand().create_parser("manage.py", "")._actions}
    for action in parser._actions:
        if action.dest in of_django | INTERNAL:
            action.help = SUPPRESS
    return parser
