"""A snapshot of a run, read in one query."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from durable import runtime
from durable.core.errors import ErrorInfo
from durable.core.location import awaited_queues
from durable.core.mistakes import has_stopped
from durable.core.places import Place
from durable.core.records import ENDED, RunRecord

if TYPE_CHECKING:
    from durable.models import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RunInfo:
    """A run as it was when it was read. The object does not change; read the run again for newer values.

    - `state`: pending, running, sleeping, paused, rolling_back, completed, failed or cancelled. `has_ended`: one of the
      last three.
    - `summary`: what the run does or waits for, in one line; "" if there is nothing to say. Of a run that has ended it
      says how many of its children the workers have still to cancel.
    - `error`: why the run failed, or is being rolled back; None otherwise. `is_mistake`: a mistake in the workflow's
      code has stopped the run, so nothing was undone, and recover() continues the run after the code is fixed.
    - `wake_at`: when the run continues by itself; None if it does not, and while a worker has it.
    - `waiting_for`: the message queues that the run waits for, [] for any; None if it waits for no message.
    - `created_at`, `started_at`, `finished_at`: aware times; the last two are None until they happen.
    - `parent_id`: the run whose step started it. `replay_of_id`: the run that it repeats. None if there is none.
    """

    id: str
    workflow: str
    queue: str
    state: str
    summary: str
    error: ErrorInfo | None
    wake_at: datetime | None
    waiting_for: list[str] | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    parent_id: str | None
    replay_of_id: str | None
    is_mistake: bool = False
    _output: str | None = field(repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether the run is in a final state."""
        return self.state in ENDED

    @property
    def output(self) -> Any:
        """The value that the workflow returned; None before. Decoded at each access. Raises PayloadError."""
        return runtime.current().decode(self._output, Place(self.id, "output"))

    @classmethod
    def of(cls, row: Run | RunRecord, *, summary: str | None = None) -> Self:
        """Return the view of a row that was already read, a `durable.models.Run`; no query.

        `summary` is the text to show, None for that of the row, which does not have the number of children that are
        left.
        """
        return cls(
            id=row.id,
            workflow=row.workflow,
            queue=row.queue,
            state=str(row.state),
            summary=str(row.summary) if summary is None else summary,
            error=row.error,
            wake_at=None if row.lease_expires_at is not None else row.wake_at,
            waiting_for=awaited_queues(row.state, row.waiting_for),
            created_at=row.created_at,
            started_at=row.started_at,
            finished_at=row.finished_at,
            parent_id=row.parent_id,
            replay_of_id=row.replay_of_id,
            is_mistake=has_stopped(row.summary),
            _output=row.output,
        )
