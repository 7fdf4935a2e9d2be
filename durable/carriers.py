"""What travels with a run: saved at its start, in the caller's request, and in force wherever the run's code is called.

`DURABLE["CARRY"]` names carriers: `{"tenant": "shop.tenants.carry"}`. A carrier has `save()`, which returns JSON, None
for nothing, and `restored(value)`, a context manager. Owns what is kept with a run (one JSON object, by the carriers'
names), and its way in and out. Must not decide what a carrier's error means for a run: the engine does.

A run keeps what its start has saved. Children, forks, replays and restarts have a copy of it, also of what this process
cannot read: `save()` is asked where nothing is known yet, never about a run that has values.

`restored` is entered around each pass, and again around each call of a function of the run. So a step has the same
values whether the step before it was called in this pass or is replayed, whatever that has left behind, and its thread
and its database connection have them too. A context manager hears of no error: one that it swallowed would be lost.
"""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from functools import lru_cache
from importlib import import_module
from typing import Any, Final, Protocol, runtime_checkable

from django.utils.module_loading import import_string

from durable.conf import conf
from durable.core.errors import CarrierError
from durable.core.records import RunRecord

logger = logging.getLogger("durable.pass")

#: Characters of the JSON text of all that travels with one run.
MAX_CARRIED: Final = 8_192


@runtime_checkable
class Carrier(Protocol):
    """What one name of `DURABLE["CARRY"]` stands for."""

    def save(self) -> Any:
        """Return what is active now as JSON: a dict, a list, text, a number or a bool; None for nothing."""

    def restored(self, value: Any, /) -> AbstractContextManager[Any]:
        """Return a context manager in which the value that `save` has returned is active."""


def carrier(path: str) -> Carrier:
    """Return the carrier of this path: an object, a module, a class or a function that returns one.

    Raises ImportError, TypeError for what is none, and what the class or the function raises.
    """
    return _carrier(path)


@lru_cache(maxsize=64)
def _carrier(path: str) -> Carrier:
    if not isinstance(path, str):
        raise TypeError(f"it is {path!r}, not the dotted path of a carrier")
    try:
        found = import_string(path)
    except ImportError:
        try:
            found = import_module(path)
        except ImportError:
            found = None
        if found is None:
            raise
    if isinstance(found, type) or (callable(found) and not isinstance(found, Carrier)):
        found = found()
    if not (isinstance(found, Carrier) and callable(found.save) and callable(found.restored)):
        lacks = [each for each in ("save", "restored") if not callable(getattr(found, each, None))]
        raise TypeError(f"{path} has no {' and no '.join(f'{each}()' for each in lacks)}")
    return found


def saved() -> str | None:
    """Ask each carrier what is active here; return it as JSON text, or None for nothing. Raises CarrierError."""
    if not conf.CARRY:
        return None
    values = {}
    for name, path in conf.CARRY.items():
        value = _saved(name, path)
        if value is not None:
            values[name] = value
    if not values:
        return None
    text = _dumped(values)
    if len(text) > MAX_CARRIED:
        largest = max(values, key=lambda each: len(_dumped(values[each])))
        size = (
            f"{len(text):,} characters of JSON travel with the run, most of them its own; at most {MAX_CARRIED:,} may"
        )
        raise CarrierError(
            largest, f"({conf.CARRY[largest]}) saves too much: {size}. Save a key of it, and read the rest"
        )
    return text


def _saved(name: str, path: str) -> Any:
    value = None
    try:
        value = carrier(path).save()
        text = _dumped(value)
    except Exception as error:
        if inspect.iscoroutine(value):
            value.close()
        raise _failed(name, path, "save()", error) from error
    if json.loads(text) != value:
        problem = f"({path}) returns from save() what JSON does not give back, of type {type(value).__name__}: "
        raise CarrierError(name, f"{problem}return dicts with text as keys, lists, text, numbers, True, False or None")
    return value


def _dumped(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _path_of(name: str) -> str | None:
    return conf.CARRY.get(name) if conf.CARRY else None  # None is not a setting, but a worker has to go on


def _failed(name: str, path: str, what: str, error: Exception) -> CarrierError:
    return CarrierError(name, f"({path}) has failed in {what}: {type(error).__name__}: {error}")


def restored(run: RunRecord) -> AbstractContextManager[None]:
    """Return a context manager in which what travels with the run is in force. It raises CarrierError when entered.

    The carrier of a value that this process lacks is left out, and the log says so.
    """
    return nullcontext() if run.carried is None else _restored(run, run.carried)


@contextmanager
def restored_for_replay(run: RunRecord) -> Iterator[None]:
    """Put in force what travels with the run, or nothing if that fails, while its code is compared with its records."""
    with ExitStack() as around:
        with suppress(CarrierError):
            around.enter_context(restored(run))
        yield


@contextmanager
def _restored(run: RunRecord, carried: str) -> Iterator[None]:
    entered: list[tuple[str, AbstractContextManager[Any]]] = []
    try:
        for name, value in json.loads(carried).items():
            path = _path_of(name)
            if path is None:
                _tell_of_unread(run.id, run.workflow, name)
                continue
            try:
                around = carrier(path).restored(value)
                around.__enter__()
            except Exception as error:
                raise _failed(name, path, "restored()", error) from error
            entered.append((name, around))
        yield
    finally:
        for name, around in reversed(entered):
            _left(run, name, around)


def _left(run: RunRecord, name: str, around: AbstractContextManager[Any]) -> None:
    try:
        around.__exit__(None, None, None)
    except Exception:
        # what the run has done is recorded, or will be: only what comes after it could be affected
        text = 'run %s: the carrier "%s" of DURABLE["CARRY"] has failed at the end of restored()'
        logger.exception(text, run.id, name, extra={"run_id": run.id, "workflow": run.workflow})


@lru_cache(maxsize=1_000)  # once for each run and process: a run may have many passes and steps
def _tell_of_unread(run_id: str, workflow: str, name: str) -> None:
    text = 'run %s: nobody reads the value of "%s" that travels with it: DURABLE["CARRY"] of this process has no such carrier'
    logger.warning(text, run_id, name, extra={"run_id": run_id, "workflow": workflow})


def check(carried: str | None) -> None:
    """Raise ValueError for a text that `saved` cannot have returned."""
    if carried is None:
        return
    try:
        is_object = isinstance(json.loads(carried), dict)
    except ValueError:
        is_object = False
    if not is_object or len(carried) > MAX_CARRIED:
        raise ValueError(f"what travels with a run is a JSON object of at most {MAX_CARRIED:,} characters")


def unread(carried: str | None) -> list[str]:
    """Return the names of the values that no carrier of this process reads."""
    return [] if carried is None else [name for name in json.loads(carried) if _path_of(name) is None]
