"""The command line's words for what a page offers: "copy as command"."""

from __future__ import annotations

import shlex
from typing import Any

__all__ = ["command"]

#: What the command line calls the verbs, where it has another word.
_NAMES = {"recover": "retry"}


def command(verb: str, *arguments: str, **options: Any) -> str:
    """`manage.py durable <verb> ...`, quoted for a shell. An option that is True has no value, one that is empty is left out."""
    words = ["manage.py", "durable", _NAMES.get(verb, verb), *arguments]
    for name, value in options.items():
        if value:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return shlex.join(words)
