"""Deletes the rows that a test of the stores has left.

Owns which tables a store may have written to. A test that begins anew hundreds of times names the few that it writes.
"""

from __future__ import annotations

from typing import Final

from django.db import connections

from durable.models import (
    Activity,
    Attempt,
    Cascade,
    Cause,
    CauseBuild,
    Child,
    ChildGroup,
    ChildReader,
    Entry,
    EntryMetadata,
    Event,
    EventKey,
    EventWait,
    Failure,
    GroupTally,
    HeldStart,
    Hold,
    KeyedSend,
    Lane,
    Limit,
    LimitKey,
    Link,
    OperatorAction,
    QueueMessage,
    RateKey,
    RateLimit,
    Reservation,
    Run,
    RunKey,
    RunLimit,
    RunRank,
    RunStatus,
    RunSubject,
    RunTag,
    Share,
    Slot,
    SlotNote,
    StepSave,
    Turn,
    WorkflowEnd,
)

#: All tables that a store writes to.
TABLES: Final = tuple(
    model._meta.db_table
    for model in (
        *(Activity, OperatorAction, Failure, CauseBuild, Cause, Attempt, QueueMessage, EntryMetadata, Entry),
        *(Limit, LimitKey, RateLimit, RateKey, Reservation, Slot, SlotNote, Turn, GroupTally, ChildGroup),
        *(
            HeldStart,
            Hold,
            RunLimit,
            RunStatus,
            StepSave,
            Cascade,
            ChildReader,
            Child,
            RunKey,
            RunRank,
            RunTag,
            RunSubject,
            Lane,
            Share,
        ),
        *(Event, EventKey, EventWait, KeyedSend, Link, WorkflowEnd, Run),
    )
)


def empty(alias: str, *tables: str) -> None:
    """Delete all rows of these tables of the database `alias`, in this order; of durable's tables if none is named."""
    connection = connections[alias]
    statements = [f"DELETE FROM {table}" for table in tables or TABLES]
    with connection.cursor() as cursor:
        for each in ["; ".join(statements)] if connection.vendor == "postgresql" else statements:
            cursor.execute(each)
