"""Protocols by which the readers of expressions, calls, operations and statements know each other."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from durable.lint.facts import Branch, Facts, Frame, Step
from durable.lint.values import Function, Origin, Result, Scope


class Walker(Protocol):
    """The reader of the statements around the expressions."""

    facts: Facts

    def enter(
        self,
        function: Function,
        args: Sequence[Result],
        keywords: dict[str, Result],
        caller: Frame,
        *,
        site: ast.AST | None = None,
        scope: Scope | None = None,
        step: Step | None = None,
    ) -> Result:
        """Read a function that is called."""

    def assign(self, target: ast.expr, result: Result, frame: Frame) -> None:
        """Note what a target holds."""

    def element(self, iterated: Result) -> tuple[Result, frozenset[Origin]]:
        """Return what an element is, and why their order differs."""

    def mutate(self, target: ast.expr, node: ast.AST, frame: Frame) -> None:
        """Note that what a target stands for is changed."""

    def within(self, branch: Branch, frame: Frame) -> AbstractContextManager[None]:
        """Read a part that is not always run, or not once."""


class Reader(Protocol):
    """The reader of the expressions within calls."""

    def of(self, node: ast.expr, frame: Frame) -> Result:
        """Read an expression."""
