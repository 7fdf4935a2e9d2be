"""A run's history in words, for people who buy cushions. Reads what `handle.history()` gives; decides nothing."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from django.utils.timezone import localtime

from durable.core.location import unescape
from durable.operations import HistoryEntry

__all__ = ["Step", "build_timeline", "clock"]

_SHOWN = {"step", "sleep", "message", "join", "child"}
# What a wait has that is not for a message of a name: what it is said to wait for, and what is said when it is over.
_FROM_OUTSIDE = [
    ("link", "waits for a signed answer", "a signed answer has come"),
    ("event", "waits for the event", "the event has come"),
    ("ask", "waits for colleagues to decide", "decided"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One line: `where` (the scopes around it), `title`, how far it is, a `note` on that, when, and what went wrong."""

    location: str
    where: str
    title: str
    status: str
    note: str
    at: datetime | None = None
    error: str = ""


def clock(moment: datetime) -> str:
    """The time of the day, with the day if it is another one than today."""
    there = localtime(moment)
    return f"{there:%H:%M:%S}" if there.date() == localtime().date() else f"{there:%d %B, %H:%M}"


def build_timeline(
    history: Iterable[HistoryEntry], children: Mapping[str, Sequence[HistoryEntry]] | None = None
) -> list[Step]:
    """The lines to show, in the order in which the run came to them. What was undone comes last, as it happened.

    `children` has the histories of the run's children by their ids: their lines follow the child's own.
    """
    of_children = children or {}
    shown = []
    for entry in history:
        if entry.kind in _SHOWN:
            shown.append(entry)
        if entry.kind == "child":
            inside = [each for each in of_children.get(entry.data.get("child", ""), ()) if each.kind in _SHOWN]
            shown += [_inside(entry, each) for each in inside]
    undone = sorted(
        (entry for entry in shown if entry.rollback_completed_at),
        key=lambda each: each.rollback_completed_at or each.created_at,
    )
    return [_step(entry) for entry in shown] + [_undoing(entry) for entry in undone]


def _inside(parent: HistoryEntry, entry: HistoryEntry) -> HistoryEntry:
    return replace(entry, location=f"{parent.location}/{entry.location}")


def _step(entry: HistoryEntry) -> Step:
    *scopes, title = (_spoken(segment) for segment in entry.location.split("/"))
    return Step(
        location=entry.location,
        where=" / ".join(scopes),
        title=title,
        status="undone" if entry.rollback_completed_at else entry.status,
        note=_note(entry),
        at=entry.completed_at or entry.created_at,
        error=str(entry.error.message) if entry.error else "",
    )


def _undoing(entry: HistoryEntry) -> Step:
    return Step(
        location=f"{entry.location}#undone",
        where="",
        title=f"undo {_spoken(entry.location.rpartition('/')[2])}",
        status="completed",
        note="done",
        at=entry.rollback_completed_at,
    )


def _spoken(segment: str) -> str:
    return f"#{int(segment[1:]) + 1}" if segment.startswith("~") else unescape(segment)


def _note(entry: HistoryEntry) -> str:
    if entry.rollback_completed_at:
        return "undone"
    return _NOTES[entry.kind](entry)


def _step_note(entry: HistoryEntry) -> str:
    if entry.status == "completed":
        return "done" if entry.attempts <= 1 else f"done at attempt {entry.attempts}"
    if entry.next_attempt_at:
        return f"attempt {entry.attempts} failed, the next one is at {clock(entry.next_attempt_at)}"
    tried = f"{entry.attempts} attempt{'s' if entry.attempts > 1 else ''}"
    if entry.status == "exhausted":
        return f"given up after {tried}"
    if entry.status == "held":
        return f"waits for someone to look at it, after {tried}"
    return "it is asked whether it was done" if entry.status == "unknown" else "under way"


def _sleep_note(entry: HistoryEntry) -> str:
    if entry.status == "completed":
        return "slept"
    return f"sleeps until {clock(datetime.fromisoformat(entry.data['deadline']))}"


def _message_note(entry: HistoryEntry) -> str:
    for key, waits, has_come in _FROM_OUTSIDE:
        if key in entry.data:
            return has_come if entry.status == "completed" else f"{waits}{_until(entry)}"
    if entry.status == "completed":
        received = [message["name"] for message in entry.data["received"]]
        return f"received {', '.join(received)}" if received else "nothing came"
    return f"waits for {' or '.join(entry.data['names'])}{_until(entry)}"


def _until(entry: HistoryEntry) -> str:
    deadline = entry.data["deadline"]
    return f" until {clock(datetime.fromisoformat(deadline))}" if deadline else ""


def _join_note(entry: HistoryEntry) -> str:
    return "all done" if entry.status == "completed" else "side by side"


def _child_note(entry: HistoryEntry) -> str:
    if entry.data["action"] == "start":
        return "goes on as a run of its own"
    if entry.status == "completed":
        return "done by its own run"
    return "its own run has failed" if entry.status == "exhausted" else "under way in its own run"


_NOTES = {
    "step": _step_note,
    "sleep": _sleep_note,
    "message": _message_note,
    "join": _join_note,
    "child": _child_note,
}
