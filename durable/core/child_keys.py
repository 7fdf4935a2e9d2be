"""Keys of children: what the start of a child does when an open run of its workflow has its key.

A child is refused where a run that is no child of this operation has the key, or that run is cancelled in its place
(`if_open="replace"`). It never stands for a run that others have started: that run would neither end with this parent
nor wake it. The key itself is taken by the commit that starts the child.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from durable.core import transitions
from durable.core.effects import KeyOwner, Operation, PeekKey, Supersede
from durable.core.errors import KeyConflictError
from durable.core.records import ENDED, Request, RunChange, RunRecord, RunState
from durable.core.renames import is_same
from durable.core.summary import Summary, SummaryKind

_REASON: Final = 'replaced by run "{child}", which was started with its key'


@dataclass(frozen=True, slots=True)
class ChildKey:
    """The key of a child, and whether a run that has it is cancelled in the child's favour."""

    key: str
    replaces: bool = False


@dataclass(frozen=True, slots=True)
class KeyRefusal:
    """A start that was refused because of its key: who has it, and the way from there to this run if it is one."""

    key: str
    owner: str
    chain: tuple[str, ...] = ()

    @classmethod
    def of(cls, data: dict[str, Any]) -> KeyRefusal:
        """Return what an entry's data has of it."""
        return cls(data["key"], data["owner"], tuple(data["chain"]))

    def to_data(self) -> dict[str, Any]:
        """Return it as data of an entry."""
        return {"key": self.key, "owner": self.owner, "chain": list(self.chain)}

    def error(self) -> KeyConflictError:
        """Return the error that the workflow sees."""
        return KeyConflictError(self.owner, self.key, is_child=True, chain=self.chain)


def freed(run: RunRecord, location: str, workflow: str, wanted: ChildKey, child_id: str) -> Operation:
    """Let the key be free for the child that the run is about to start here, or return a `KeyRefusal`.

    An earlier child of the same operation, which was taken back and has not ended yet, gives its key up.
    """
    while True:
        owner: KeyOwner | None = yield PeekKey(workflow, wanted.key)
        if owner is None:
            return None
        child = owner.child
        is_own = child is not None and child.parent_id == run.id and is_same(run.workflow, child.location, location)
        refusal = KeyRefusal(wanted.key, owner.run_id, owner.chain)
        if owner.chain or not (is_own or wanted.replaces):
            return refusal
        has_gone = yield Supersede(workflow, wanted.key, owner.run_id, _REASON.format(child=child_id))
        if not has_gone:
            return refusal


def change_of(owner: RunRecord, reason: str, now: datetime) -> RunChange | None:
    """Return the change that cancels the run that has the key, whose row is locked; None if it is being compensated."""
    if owner.state == RunState.ROLLING_BACK or owner.state_after_rollback:
        return None
    if owner.state in ENDED or owner.pending_request in (Request.CANCEL, Request.CANCEL_ROLLBACK):
        return RunChange(run={"change_seq": owner.change_seq})
    if owner.lease_expires_at is not None and owner.lease_expires_at > now:
        return RunChange(run=transitions.cancel_requested(owner, request=Request.CANCEL, reason=reason))
    summary = Summary(SummaryKind.CANCELLED, reason=reason)
    return RunChange(run=transitions.cancelled_at_once(owner, now=now, reason=reason, summary=summary))
