"""What a command of durable prints. Tests of the command line itself have a shell (`tests/cli/conftest.py`)."""

from __future__ import annotations

import io

from django.core.management import call_command

from tests.support.one_parser import one_parser


def printed(*arguments: str) -> str:
    """The standard output of `manage.py durable <arguments>`."""
    out = io.StringIO()
    with one_parser():
        call_command("durable", *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()
