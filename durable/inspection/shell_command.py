"""Shell commands as lines that an operator can copy."""

from __future__ import annotations

import shlex
from typing import Any

from durable.core.printable import safe


def command(verb: str, *arguments: str, **options: Any) -> str:
    """Return `python manage.py durable <verb> ...`, quoted for a shell.

    A True option has no value; an empty one is left out.
    """
    words = ["python", "manage.py", "durable", verb, *arguments]
    for name, value in options.items():
        if value:
            words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return " ".join(map(_quoted, words))


def worker_command(*queues: str) -> str:
    """Return the command that starts a worker for these queues, for all queues without any."""
    return " ".join(map(_quoted, ["python", "manage.py", "durable_worker", *queues]))


def _quoted(word: str) -> str:
    """Return the word quoted for a shell.

    A word with characters that hide or reorder text has them as numbers: `$'order \\u202e1'`, as bash, zsh and ksh read
    it.
    """
    if safe(word) == word:
        return shlex.quote(word)
    return "$'" + "".join(map(_shown, word)) + "'"


def _shown(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if safe(character) == character:
        return character
    return f"\\u{ord(character):04x}" if ord(character) < 0x10000 else f"\\U{ord(character):08x}"
