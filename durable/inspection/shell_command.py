"""The shell command of a verb, as a line that an operator can copy."""

from __future__ import annotations

import shlex
from typing import Any

__all__ = ["command"]


def command(verb: str, *arguments: str, **options: Any) -> str:
    """Return `python manage.py durable <verb> ...`, quoted for a shell.

    A True option has no value; an empty one is left out.
    """
    words = ["python", "manage.py", "durable", verb, *arguments]
    for name, value in options.items():
        if value:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
