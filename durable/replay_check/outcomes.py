"""The outcome of the code at the end of a replay, and the decisions that differ from the record."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any, Final

from durable.codec import Codec, JsonCodec
from durable.codec.binding import decode_at
from durable.core.divergences import Divergence, DivergenceKind
from durable.core.errors import ContractError, ErrorInfo, HistoryDivergedError, PayloadError
from durable.core.location import general_location
from durable.core.places import Place
from durable.core.records import ENDED, RunRecord, RunState
from durable.replay_check.findings import Decision
from durable.replay_check.host import RecordsJournal
from durable.replay_check.mends import named

_CODEC: Final = JsonCodec(max_bytes=sys.maxsize)


@dataclass(slots=True)
class Outcome:
    """The outcome of the code: an error, a value, or (`has_ended` is False) an operation that is not recorded."""

    has_ended: bool = False
    value: Any = None
    error: Exception | None = None
    journal: RecordsJournal | None = None


def decision_of(run: RunRecord, outcome: Outcome, codec: Codec) -> Decision | None:
    """Return what the code does instead of what an ended run has done.

    Return None if it does the same, as far as that is known.
    """
    if run.state not in ENDED or outcome.journal is None:
        return None
    error = outcome.error
    if isinstance(error, HistoryDivergedError) and error.divergence is not None:
        return _diverged(run, error.divergence)
    if isinstance(error, ContractError):
        return None
    if run.state == RunState.CANCELLED and error is None:
        return None  # from outside: the record does not say what the run would have done
    if error is not None:
        kind = ErrorInfo.of(error).type
        if run.state == RunState.FAILED and run.error is not None and run.error.type == kind:
            return None
        return Decision(run.workflow, "", f"raised {kind}", _end(run))
    for each in [] if outcome.has_ended else outcome.journal.not_answered:
        if outcome.journal.entry_at(each.location) is None:
            return Decision(run.workflow, general_location(each.location), f"gone on with {named(each)}", _end(run))
    if not outcome.has_ended:
        return None
    if run.state == RunState.FAILED:
        return Decision(run.workflow, "", "completed", _end(run))
    if run.state == RunState.COMPLETED and _differs(run, outcome.value, codec):
        return Decision(run.workflow, "", "returned another result", "the recorded one")
    return None


def _diverged(run: RunRecord, found: Divergence) -> Decision:
    instead = next(iter(map(named, found.recorded)), _end(run))
    if found.raised is not None:
        place = general_location(found.recorded[0].location)
        return Decision(run.workflow, place, f"raised {ErrorInfo.of(found.raised).type}", instead)
    if found.code is None:
        return Decision(run.workflow, general_location(found.recorded[0].location), "ended", instead)
    another = "another " if found.kind == DivergenceKind.CHANGED else ""
    does = f"done {another}{named(found.code)}"
    return Decision(run.workflow, general_location(found.code.location), does, instead)


def _end(run: RunRecord) -> str:
    if run.state == RunState.COMPLETED:
        return "completing"
    if run.state == RunState.FAILED:
        return f"failing with {run.error.type}" if run.error is not None else "failing"
    return "being cancelled"


def _differs(run: RunRecord, value: Any, codec: Codec) -> bool:
    """Return True if the value certainly is another one than the recorded output."""
    try:
        recorded = None if run.output is None else decode_at(codec, run.output, Place(run.id, "output"))
        texts = [_CODEC.encode(each) for each in (recorded, value)]
    except PayloadError:
        return False
    return texts[0] != texts[1]
