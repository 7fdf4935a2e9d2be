"""The queries of a pass: its history, its inbox, and the states of other runs.

Owns reading from the store during a pass, and ending the pass if the store does not answer. Must not write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

from durable import declared_limits, link_tokens, runtime
from durable.conf import conf
from durable.core.children.entries import open_group, waits_for
from durable.core.children.questions import KeyOwner, PeekChild, PeekGroup, PeekKey, PeekMembers, PeekTaken
from durable.core.control_flow import PassAborted
from durable.core.effects import Ask
from durable.core.events import PeekEvents
from durable.core.limits.slots import Ancestor, Deadlock, PeekDeadlock, find
from durable.core.links import PeekAddress
from durable.core.location import ANY_QUEUE, child_token, is_awaited
from durable.core.messages import PeekInbox, PeekRun
from durable.core.records import ENDED, ChildRecord, EntryStatus, RunRecord
from durable.core.simple_operations import PeekTags
from durable.core.time_limits import History
from durable.core.witnesses import is_of_first_claim
from durable.drivers.threads import ThreadDelegate
from durable.store import Store, sessions
from durable.store.base import ChildRefused

T = TypeVar("T")

logger = logging.getLogger("durable.pass")


class PassQueries:
    """The queries of one pass of `run`. In branch threads they are delegated to the pass's own thread."""

    def __init__(self, run: RunRecord, store: Store, delegate: ThreadDelegate) -> None:
        self._run = run
        self._store = store
        self._delegate = delegate

    def history(self) -> History:
        """Return the run's entries as the pass begins; without a query if there can be none."""
        if not may_have_history(self._run):
            return History()
        return self._answered(lambda: self._store.load(self._run.id))

    def ask(self, question: Ask) -> Any:
        """Return the answer to a question, as defined by the question's class."""

        def with_own_session() -> Any:
            sessions.restore_used(conf.DATABASE)
            return _ANSWERS[type(question)](self, question)

        return self._answered(lambda: self._delegate.call(with_own_session))

    def _child(self, asked: PeekChild) -> tuple[RunRecord | None, ChildRecord | None]:
        found = self._store.get(asked.run_id)
        if found is None or not asked.with_origin:
            return found, None
        return found, self._store.children([asked.run_id]).get(asked.run_id)

    def _key(self, asked: PeekKey) -> KeyOwner | None:
        owner = self._store.key_holder(asked.workflow, asked.key)
        if owner is None:
            return None
        return KeyOwner(owner.id, self._store.children([owner.id]).get(owner.id), self._chain_from(owner.id))

    def _deadlock(self, asked: PeekDeadlock) -> Deadlock | None:
        ancestry = self._ancestry()
        slots = self._store.slots([each.run_id for each in ancestry])
        for want in asked.wants:
            known = want.at_once if asked.is_full else self._store.at_once(want.limit)
            at_once = known if known is not None else declared_limits.defined(want).at_once
            if (found := find(ancestry, slots, want, at_once or 0, asked.own)) is not None:
                return found
        return None

    def _ancestry(self) -> list[Ancestor]:
        ancestry = [Ancestor(self._run.id, waits=True)]
        while (child := self._store.children([ancestry[-1].run_id]).get(ancestry[-1].run_id)) is not None:
            parent = self._store.get(child.parent_id)
            if parent is None or parent.state in ENDED:
                break
            ancestry.append(Ancestor(parent.id, waits=self._awaits(parent, child)))
        return ancestry

    def _awaits(self, parent: RunRecord, child: ChildRecord) -> bool:
        if not parent.waiting_for.startswith(ANY_QUEUE):
            return is_awaited(parent.waiting_for, child_token(child.member_of or child.run_id))
        waits = (each for each in self._store.load(parent.id) if each.status == EntryStatus.PENDING)
        return any(waits_for(each, child.run_id) or open_group(each) == child.member_of is not None for each in waits)

    def _chain_from(self, ancestor: str) -> tuple[str, ...]:
        """Return the ids from this ancestor of the run to the run itself, () if it is none."""
        chain = [self._run.id]
        while chain[0] != ancestor:
            child = self._store.children(chain[:1]).get(chain[0])
            if child is None:
                return ()
            chain.insert(0, child.parent_id)
        return tuple(chain)

    def _answered(self, query: Callable[[], T]) -> T:
        try:
            return query()
        except Exception as error:  # the next pass reads what was really committed
            raise pass_aborted(self._run, error) from error


_ANSWERS: Final[dict[type[Ask], Callable[[PassQueries, Any], Any]]] = {
    PeekInbox: lambda of, asked: of._store.inbox(of._run.id, asked.names, asked.count, asked.before),
    PeekRun: lambda of, asked: of._store.get(asked.run_id),
    PeekChild: PassQueries._child,
    PeekKey: PassQueries._key,
    PeekGroup: lambda of, asked: of._store.group(asked.group_id),
    PeekMembers: lambda of, asked: of._store.members(asked.group_id, asked.after, asked.count, is_lost=asked.is_lost),
    PeekTaken: lambda of, asked: set(of._store.states(asked.run_ids)),
    PeekTags: lambda of, _asked: of._store.tags([of._run.id]).get(of._run.id, {}),
    PeekDeadlock: PassQueries._deadlock,
    PeekAddress: lambda _of, _asked: link_tokens.address(in_test=runtime.is_replaced()),
    PeekEvents: lambda of, asked: of._store.newest_event(asked.name, asked.key),
}


def may_have_history(run: RunRecord) -> bool:
    """Return True if a newly claimed run may have entries. At the first claim, none can have been written."""
    return not is_of_first_claim(run.fence) or run.replay_of_id is not None


def pass_aborted(run: RunRecord, error: Exception) -> PassAborted:
    """Log why the store did not do what the pass requested, and return the exception that ends the pass."""
    if isinstance(error, ChildRefused):
        logger.warning("run %s: %s, and the next pass finds it so", run.id, error, extra={"run_id": run.id})
        return PassAborted(str(error))
    with suppress(Exception):
        logger.warning("run %s: the store did not answer: %s", run.id, error)
    return PassAborted(f"the store did not answer: {error}")
