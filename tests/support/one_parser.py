"""One parser of `manage.py durable` for all calls of a process: to build its 76 subcommands costs 0.04 s each time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

from django.core.management.base import CommandParser

from durable.management.commands.durable import Command

_build = Command.create_parser


@cache
def _parser(prog_name: str, subcommand: str) -> CommandParser:
    return _build(Command(), prog_name, subcommand)


@contextmanager
def one_parser() -> Iterator[None]:
    """Inside, commands parse with the parser that the first of them has built. Nothing in it depends on settings."""

    def create_parser(_self: Command, prog_name: str, subcommand: str, **more: Any) -> CommandParser:
        assert not more
        return _parser(prog_name, subcommand)

    with patch.object(Command, "create_parser", create_parser):
        yield
