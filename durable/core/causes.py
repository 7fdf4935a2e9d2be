"""The cause of a failure: where a run failed, with which error, and the pattern of the error's message.

Runs that failed for one reason have one cause, so that operators see one line and act on exactly these runs. The error
is that of the step itself, not of the errors around it (`StepExhaustedError`, `JoinError`). It is read from the run's
history when the run fails, so nothing has to be recorded beforehand. Pure functions; must not write.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from durable.core.errors import ErrorInfo, Origin
from durable.core.location import escape, join, unescape
from durable.core.records import Cause, EntryRecord, FailureRecord, RunPatch, RunRecord, RunState
from durable.core.summary import Summary, SummaryKind
from durable.core.words import safe

#: The end of the place of a rollback handler's failure.
ROLLBACK: Final = "(rollback)"

MAX_PATTERN: Final = 200  # characters
MAX_PLACE: Final = 1024  # characters
MAX_TYPE: Final = 200  # characters
_MAX_READ: Final = 1_000  # characters of a message from which its pattern is made

_ITERATION: Final = re.compile(r"~\d+")
_UUID: Final = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#: What numbered steps and branches have in their names: UUIDs, and numbers that are not part of a word as in "oauth2".
_NUMBERED: Final = re.compile(rf"{_UUID}|(?<![^\W_])\d+(?![^\W_])")
#: What differs from one failure to the next of the same cause: addresses, UUIDs, words with a digit.
_VARIABLE: Final = re.compile(rf"[\w.+-]+@[\w-]+(?:\.[\w-]+)+|{_UUID}|\w*\d\w*")
_NUMBERS: Final = re.compile(r"#(?:[.,:/+-]?#)+")
_LAST_MOMENT: Final = datetime.max.replace(tzinfo=UTC)

Find = Callable[[str], EntryRecord | None]


def failure_by(run: RunRecord, patch: RunPatch, find: Find, now: datetime, build: str = "") -> FailureRecord | None:
    """Return the record of the failure if `patch` makes the run failed; else None.

    `find` returns the run's entry at a location. `build` names the code of this worker.
    """
    if patch.get("state") != RunState.FAILED:
        return None
    return _failure(run, *_root(run, patch, find), now, build)


def held_failure(run: RunRecord, entry: EntryRecord, now: datetime, build: str = "") -> FailureRecord:
    """Return the record of a step that waits for a person, because of its entry's error."""
    error = entry.error or ErrorInfo("Exception", "unknown")
    return _failure(run, place_of(entry.location), error, now, build, is_held=True)


def _failure(
    run: RunRecord, place: str, error: ErrorInfo, now: datetime, build: str, *, is_held: bool = False
) -> FailureRecord:
    cause = Cause(
        place=numberless(place)[:MAX_PLACE], error_type=safe(error.type)[:MAX_TYPE], pattern=pattern_of(error.message)
    )
    return FailureRecord(
        run_id=run.id,
        cause=cause,
        workflow=run.workflow,
        queue=run.queue,
        worker=run.worker,
        failed_at=now,
        run_created_at=run.created_at,
        build=build,
        is_held=is_held,
    )


def with_origin(error: ErrorInfo, origins: Sequence[str], find: Find) -> ErrorInfo:
    """Return the error of a failed run, with its origin if the operations at `origins` recorded one.

    If several branches failed, the origin is the first failure. `find` returns the run's entry at a location.
    """
    found = min(_failures(origins, find), key=lambda each: each[1] or _LAST_MOMENT, default=None)
    return error if found is None else replace(error, origin=found[0])


def failed_at(error: ErrorInfo | None, origins: Sequence[str]) -> str:
    """Return the location of the operation whose failure made the run fail, inside joins too; "" if there is none."""
    origin = None if error is None else error.origin
    return next(iter(origins), "") if origin is None else origin.location


def place_of(location: str) -> str:
    """Return a location for display, with "~" in place of iteration numbers; "" for the workflow's own code."""
    if not location:
        return ""
    segments = ["~" if _ITERATION.fullmatch(each) else unescape(each) for each in location.split("/")]
    return safe(" / ".join(segments))


def numberless(place: str) -> str:
    """Replace the numbers in a place's names with "#", so that numbered steps and branches become one place.

    A number inside a word, as in "oauth2", stays.
    """
    return _NUMBERED.sub("#", place)


def pattern_of(message: str) -> str:
    """Return the message's pattern, at most `MAX_PATTERN` characters: the part that failures of one cause share.

    "#" stands for numbers, addresses and words with a digit in them. White space is folded, and characters that control
    a terminal or hide text are escaped.
    """
    text = " ".join(message[:_MAX_READ].split())
    return safe(_NUMBERS.sub("#", _VARIABLE.sub("#", text)))[:MAX_PATTERN]


def _root(run: RunRecord, patch: RunPatch, find: Find) -> tuple[str, ErrorInfo]:
    """Return the place of the failure and its innermost error."""
    stopped = Summary.load(patch.get("summary", run.summary))
    if stopped.kind is SummaryKind.HANDLER_FAILED:
        location = stopped.facts["location"]
        entry = find(location)
        error = None if entry is None else entry.rollback_error
        return _rollback_of(place_of(location)), error or _described(stopped)
    if stopped.kind is SummaryKind.COMPENSATION_STOPPED:
        return _rollback_of(""), _described(stopped)
    error = patch.get("error", run.error) or ErrorInfo("Exception", "unknown")
    origin = error.origin
    return ("", error) if origin is None else (place_of(origin.place), ErrorInfo(origin.type, origin.message))


def _rollback_of(place: str) -> str:
    return f"{place} {ROLLBACK}".strip()


def _described(stopped: Summary) -> ErrorInfo:
    """Parse the error text in a summary into an `ErrorInfo`."""
    kind, _, message = str(stopped.facts["error"]).partition(": ")
    return ErrorInfo(kind, message)


def _failures(origins: Sequence[str], find: Find) -> Iterator[tuple[Origin, datetime | None]]:
    """Yield each failure and, if it is known, when it began."""
    for location in origins:
        entry = find(location)
        if entry is None:
            continue
        if "branches" in entry.data:
            yield from _of_branches(entry, find)
        elif entry.error is not None:
            yield _origin(location, location, entry.error), entry.last_attempt_at


def _of_branches(fork: EntryRecord, find: Find) -> Iterator[tuple[Origin, datetime | None]]:
    for name, branch in fork.data["branches"].items():
        if branch["status"] != "failed":
            continue
        inner = list(_failures(branch.get("origins", ()), find))
        place = join(fork.location, escape(name))
        yield from inner or [(_origin(fork.location, place, ErrorInfo(*branch["error"])), None)]


def _origin(location: str, place: str, error: ErrorInfo) -> Origin:
    return Origin(location, place, error.type, error.message[:_MAX_READ])
