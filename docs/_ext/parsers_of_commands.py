"""The parsers of `manage.py durable_worker` and `durable_dev`, by names that `sphinx_argparse_cli` can import.

A parser that Django makes also has Django's own options (`--settings`, `--verbosity`, ...). They are left out here, so
that the reference shows what is durable's.
"""

from __future__ import annotations

from argparse import SUPPRESS, ArgumentParser
from typing import Any, Final

from django.core.management import load_command_class
from django.core.management.base import BaseCommand

__all__ = ["durable_dev", "durable_worker", "setup"]

INTERNAL: Final = frozenset({"as_child"})  # what the command calls itself with


def setup(_app: Any) -> dict[str, bool]:
    """Sphinx's hook: there is nothing to register."""
    return {"parallel_read_safe": True}


def durable_dev() -> ArgumentParser:
    """The parser of `manage.py durable_dev`."""
    return _parser("durable_dev")


def durable_worker() -> ArgumentParser:
    """The parser of `manage.py durable_worker`."""
    return _parser("durable_worker")


def _parser(name: str) -> ArgumentParser:
    parser: ArgumentParser = load_command_class("durable", name).create_parser("manage.py", name)
    of_django = {action.dest for action in BaseCommand().create_parser("manage.py", "")._actions}
    for action in parser._actions:
        if action.dest in of_django | INTERNAL:
            action.help = SUPPRESS
    return parser
