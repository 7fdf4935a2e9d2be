"""Reads programs and actions from JSON, strictly.

An unknown operation, a missing, unknown or ill-typed field is a `GrammarError`, so that no scenario passes because a
part of it was overlooked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast, get_args

from tests.conformance.grammar import (
    Action,
    Advance,
    Body,
    Checkpoint,
    Failure,
    Join,
    Json,
    Loop,
    Next,
    NextBatch,
    Operation,
    Race,
    Raise,
    Recover,
    Removed,
    Run,
    SendMessage,
    Sleep,
    SleepUntil,
    Step,
    Try,
    TryStep,
    Version,
)


class GrammarError(ValueError):
    """The text is not of the grammar."""


def read_program(source: Json) -> Body:
    """The program of a scenario, or of a run's input."""
    return _body(source, "program")


def read_actions(source: Json) -> tuple[Action, ...]:
    """What happens from outside, in order."""
    return tuple(_action(each, f"actions[{at}]") for at, each in enumerate(_list(source, "actions")))


class _Fields:
    """The fields of one object; each is taken once, and none may be left."""

    def __init__(self, source: Json, where: str) -> None:
        if not isinstance(source, Mapping):
            raise GrammarError(f"{where}: expected an object, found {source!r}")
        self.where = where
        self._left = dict(source)

    def take(self, name: str) -> Json:
        if name not in self._left:
            raise GrammarError(f"{self.where}: the field {name!r} is missing")
        return self._left.pop(name)

    def text(self, name: str) -> str:
        return cast(str, self._typed(name, str))

    def number(self, name: str) -> int:
        return cast(int, self._typed(name, int))

    def optional_number(self, name: str) -> int | None:
        return self.number(name) if name in self._left else None

    def flag(self, name: str) -> bool:
        return cast(bool, self._typed(name, bool)) if name in self._left else False

    def texts(self, name: str) -> tuple[str, ...]:
        found = _list(self.take(name), f"{self.where}.{name}")
        if not all(isinstance(each, str) for each in found):
            raise GrammarError(f"{self.where}.{name}: expected texts, found {found!r}")
        return tuple(found)

    def optional_texts(self, name: str) -> tuple[str, ...] | None:
        return self.texts(name) if name in self._left else None

    def body(self, name: str) -> Body:
        return _body(self.take(name), f"{self.where}.{name}")

    def failures(self, name: str) -> tuple[Failure, ...]:
        return tuple(_failure(each, f"{self.where}.{name}") for each in self.optional_texts(name) or ())

    def end(self) -> None:
        if self._left:
            raise GrammarError(f"{self.where}: unknown fields {sorted(self._left)}")

    def _typed(self, name: str, kind: type) -> Json:
        value = self.take(name)
        if type(value) is not kind:  # a bool is not a number here
            raise GrammarError(f"{self.where}.{name}: expected {kind.__name__}, found {value!r}")
        return value


def _list(source: Json, where: str) -> list[Json]:
    if not isinstance(source, list):
        raise GrammarError(f"{where}: expected a list, found {source!r}")
    return source


def _failure(kind: str, where: str) -> Failure:
    if kind not in get_args(Failure):
        raise GrammarError(f"{where}: unknown failure {kind!r}")
    return cast(Failure, kind)


def _body(source: Json, where: str) -> Body:
    return tuple(_operation(each, f"{where}[{at}]") for at, each in enumerate(_list(source, where)))


def _operation(source: Json, where: str) -> Operation:
    fields = _Fields(source, where)
    kind = fields.text("op")
    if kind not in _READERS:
        raise GrammarError(f"{where}: unknown operation {kind!r}")
    operation = _READERS[kind](fields)
    fields.end()
    return operation


def _action(source: Json, where: str) -> Action:
    fields = _Fields(source, where)
    action: Action
    match fields.text("do"):
        case "run":
            action = Run()
        case "recover":
            action = Recover()
        case "advance":
            action = Advance(ms=fields.number("ms"))
        case "message":
            action = SendMessage(queue=fields.text("queue"), body=fields.take("body"))
        case other:
            raise GrammarError(f"{where}: unknown action {other!r}")
    fields.end()
    return action


def _step(fields: _Fields) -> Step:
    return Step(
        name=fields.text("name"),
        value=fields.take("value"),
        fail=fields.failures("fail"),
        max_retries=fields.optional_number("max_retries"),
        base_ms=fields.optional_number("base_ms"),
        max_ms=fields.optional_number("max_ms"),
        ephemeral=fields.flag("ephemeral"),
        retry_on_timeout=fields.flag("retry_on_timeout"),
        rollback=fields.flag("rollback"),
    )


def _next_batch(fields: _Fields) -> NextBatch:
    return NextBatch(
        name=fields.text("name"),
        names=fields.texts("names"),
        count=fields.number("count"),
        timeout_ms=fields.optional_number("timeout_ms"),
        completable=fields.flag("completable"),
    )


def _next(fields: _Fields) -> Next:
    return Next(
        name=fields.text("name"),
        names=fields.texts("names"),
        timeout_ms=fields.optional_number("timeout_ms"),
        completable=fields.flag("completable"),
    )


def _loop(fields: _Fields) -> Loop:
    return Loop(
        name=fields.text("name"),
        until=fields.number("until"),
        body=fields.body("body"),
        prune=fields.optional_number("prune"),
        size=fields.optional_number("size"),
    )


def _join(fields: _Fields) -> Join:
    name, source = fields.text("name"), fields.take("branches")
    where = f"{fields.where}.branches"
    if not isinstance(source, Mapping):
        raise GrammarError(f"{where}: expected an object, found {source!r}")
    return Join(name=name, branches=tuple((key, _body(body, f"{where}.{key}")) for key, body in source.items()))


def _race(fields: _Fields) -> Race:
    name, where = fields.text("name"), f"{fields.where}.branches"
    branches = []
    for pair in _list(fields.take("branches"), where):
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)):
            raise GrammarError(f"{where}: expected [name, body], found {pair!r}")
        branches.append((pair[0], _body(pair[1], f"{where}.{pair[0]}")))
    return Race(name=name, branches=tuple(branches))


_READERS: dict[str, Callable[[_Fields], Operation]] = {
    "step": _step,
    "try_step": lambda fields: TryStep(catch=fields.optional_texts("catch"), step=_step(fields)),
    "try": lambda fields: Try(name=fields.text("name"), body=fields.body("body"), catch=fields.optional_texts("catch")),
    "loop": _loop,
    "sleep": lambda fields: Sleep(name=fields.text("name"), ms=fields.number("ms")),
    "sleep_until": lambda fields: SleepUntil(name=fields.text("name"), at_ms=fields.number("at_ms")),
    "next": _next,
    "next_batch": _next_batch,
    "version": lambda fields: Version(name=fields.text("name"), latest=fields.number("latest")),
    "removed": lambda fields: Removed(name=fields.text("name"), original=fields.text("type")),
    "checkpoint": lambda fields: Checkpoint(name=fields.text("name")),
    "join": _join,
    "race": _race,
    "raise": lambda fields: Raise(kind=_failure(fields.text("kind"), fields.where), message=fields.text("message")),
}
