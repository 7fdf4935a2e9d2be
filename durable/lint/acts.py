"""Notes what code calls that reads or changes the world."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager

from durable.lint.facts import Call, Facts, Frame


class Acts:
    """The calls of one workflow's code that reach the world.

    Each is a fact of the step around it, or of the code between the steps.
    """

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._naming = 0

    @contextmanager
    def naming(self, *, is_name: bool) -> Iterator[None]:
        """Read an argument of an operation, which is its name or not."""
        self._naming += is_name
        yield
        self._naming -= is_name

    def note(self, kind: str, name: str, node: ast.expr, frame: Frame) -> None:
        """Note what is called that reads or changes the world."""
        call = Call(kind=kind, name=name, node=node, module=frame.module, in_name=self._naming > 0)
        if frame.step is not None:
            frame.step.calls.append(call)
        else:
            self._facts.calls.append(call)
