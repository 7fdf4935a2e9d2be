"""The command line's own words: which subcommand a verb is, and the line that a person can copy."""

from __future__ import annotations

import shlex
from typing import Any, Final

__all__ = ["NAMES", "command"]

#: What the command line calls the verbs, where it has another word.
NAMES: Final = {"recover": "retry"}


def command(verb: str, *arguments: str, **options: Any) -> str:
    """`python manage.py durable <verb> ...`, quoted for a shell. A True option has no value, an empty one is left out."""
    words = ["python", "manage.py", "durable", NAMES.get(verb, verb), *arguments]
    for name, value in options.items():
        if value:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
