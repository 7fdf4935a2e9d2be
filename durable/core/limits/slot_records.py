"""Slots of limits: who holds one, who waits in line, and their names in code. Plain data.

A limit allows a number of slots at once, for each of its keys. A *slot* is a row that belongs to a run, held or
waiting. So slots do not expire, and a dead worker's run keeps the slots that it holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

from durable.core.ids import MAX_ID, check_key, check_limit

#: The key in an entry's data of the limit of a step.
LIMIT: Final = "limit"


class SlotKind(StrEnum):
    """For how long a slot is held. The values are stored."""

    RUNNING = "running"  # of a workflow: while a worker executes the run
    OPEN = "open"  # of a workflow: from its first pass to its end
    STEP = "step"  # of a step: while its function runs


@dataclass(frozen=True, slots=True)
class SlotWant:
    """A slot of `limit` for `key` ("" for a limit without keys), and for how long it is to be held.

    `at_once` defines a limit that has no row yet.
    """

    limit: str
    key: str = ""
    kind: SlotKind = SlotKind.STEP
    at_once: int | None = None

    @property
    def label(self) -> str:
        """The limit and the key for display: "crm/acme", or "gpu"."""
        return limit_label(self.limit, self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The answer to a run that wants slots: it holds all of them, or waits in the line of one.

    `place` counts from 1 and is capped by the store; `held` and `at_once` are those of the limit that it waits for.
    """

    is_granted: bool
    limit: str = ""
    key: str = ""
    place: int = 0
    held: int = 0
    at_once: int = 0
    queues_to_notify: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotChange:
    """The changes that a commit makes to the slots of its run.

    Slots at the locations `released` are given up, held or waited for. With `is_left`, also all slots that the run
    holds only while a worker executes it, except at `awaited`. `awaited` are the locations that the run parks for: if
    it holds their slots by now, it is due again at once.
    """

    released: Sequence[str] = ()
    is_left: bool = False
    awaited: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRow:
    """A slot of a run, held or waited for, as pages show it. `location` is "" for a slot of the workflow."""

    run_id: str
    location: str
    limit: str
    key: str
    kind: SlotKind
    is_held: bool
    since: datetime


def limit_label(limit: str, key: str) -> str:
    return f"{limit}/{key}" if key else limit


def wanted(label: str) -> SlotWant:
    """Return the slot to want of a limit named in code: "gpu", or "crm/acme" with a key. Raises ValueError."""
    limit, key = split_label(label)
    return SlotWant(limit, key)


def split_label(label: str) -> tuple[str, str]:
    """Split a name from code into limit and key: "crm/acme", or "gpu" without a key. Raises ValueError."""
    limit, slash, key = label.partition("/")
    if slash and not key:  # probably an empty variable: it must not share the slots of the limit without a key
        raise ValueError(
            f"{label!r} names an empty key: write {limit!r} for the limit without keys, or a key of 1 to {MAX_ID} "
            "characters behind the slash"
        )
    return check_limit(limit), check_key(key) if key else ""
