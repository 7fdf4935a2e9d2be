"""Rollback handlers for the tests of the engine: recorded by name, they have to be importable."""

from __future__ import annotations

from typing import Any

undone: list[Any] = []
contexts: list[Any] = []
fails_left: list[BaseException] = []


def undo(rollback: Any, output: Any) -> None:
    """Note what is undone; fail first, as often as `fails_left` says."""
    if fails_left:
        raise fails_left.pop()
    contexts.append(rollback)
    undone.append(output)


def fail(rollback: Any, output: Any) -> None:
    raise ConnectionError(f"cannot undo {output}")
