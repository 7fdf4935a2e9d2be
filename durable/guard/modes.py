"""The modes of the guard: it ignores, logs or refuses an effect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

from django.conf import settings

from durable.conf import conf
from durable.notifier.silence import is_under_test

Mode: TypeAlias = Literal["off", "log", "raise"]
#: The values of `DURABLE["GUARD"]`.
MODES: Final[tuple[Mode, ...]] = ("off", "log", "raise")

_raising: list[None] = []
_refusing: list[None] = []


def mode() -> Mode:
    """Return the mode of `DURABLE["GUARD"]`.

    By default that is "raise" in development and in tests, otherwise "log".
    """
    if _refusing:
        return "raise"
    given = conf.GUARD
    if given in MODES:  # a system check reports any other value
        return given
    return "raise" if is_developing() else "log"


def is_developing() -> bool:
    """Return True with DEBUG, in Django's tests and while a `Harness` is in force."""
    return bool(settings.DEBUG or _raising or is_under_test())


@contextmanager
def raising_by_default() -> Iterator[None]:
    """Within the block, code counts as a test's."""
    _raising.append(None)
    try:
        yield
    finally:
        _raising.pop()


def lets_reads_through() -> bool:
    """Return True while reads of the database are let through (`refusing_effects`)."""
    return bool(_refusing)


@contextmanager
def refusing_effects() -> Iterator[None]:
    """Refuse every effect within the block, whatever the setting says, but let reads of the database through."""
    _refusing.append(None)
    try:
        yield
    finally:
        _refusing.pop()
