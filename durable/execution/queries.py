"""The queries of a pass: its history, its inbox, and the states of other runs.

Owns reading from the store during a pass, and ending the pass if the store does not answer. Must not write.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from durable import declared_limits
from durable.conf import conf
from durable.core.child_entries import open_group, waits_for
from durable.core.control_flow import PassAborted
from durable.core.effects import (
    KeyOwner,
    PeekChild,
    PeekDeadlock,
    PeekGroup,
    PeekInbox,
    PeekKey,
    PeekMembers,
    PeekRun,
    PeekTaken,
)
from durable.core.location import ANY_QUEUE, child_token, is_awaited
from durable.core.records import ENDED, ChildRecord, EntryStatus, GroupRecord, Member, Message, RunRecord
from durable.core.slots import Ancestor, Deadlock, find
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

    def inbox(self, effect: PeekInbox) -> list[Message]:
        """Return the run's messages for a `PeekInbox`."""
        return self._query(lambda: self._store.inbox(self._run.id, effect.names, effect.count, effect.before))

    def run(self, effect: PeekRun) -> RunRecord | None:
        """Return another run, or None if there is none."""
        return self._query(lambda: self._store.get(effect.run_id))

    def child(self, effect: PeekChild) -> tuple[RunRecord | None, ChildRecord | None]:
        """Return the run of a child and, if asked for, what makes it one."""

        def query() -> tuple[RunRecord | None, ChildRecord | None]:
            found = self._store.get(effect.run_id)
            if found is None or not effect.with_origin:
                return found, None
            return found, self._store.children([effect.run_id]).get(effect.run_id)

        return self._query(query)

    def key(self, effect: PeekKey) -> KeyOwner | None:
        """Return who has a key, and the way from there to this run if it is an ancestor."""

        def query() -> KeyOwner | None:
            owner = self._store.key_holder(effect.workflow, effect.key)
            if owner is None:
                return None
            return KeyOwner(owner.id, self._store.children([owner.id]).get(owner.id), self._chain_from(owner.id))

        return self._query(query)

    def deadlock(self, effect: PeekDeadlock) -> Deadlock | None:
        """Return why slots that are wanted can never be had, None if they can."""

        def query() -> Deadlock | None:
            family = self._family()
            slots = self._store.slots([each.run_id for each in family])
            for want in effect.wants:
                known = want.at_once if effect.is_full else self._store.at_once(want.limit)
                at_once = known if known is not None else declared_limits.defined(want).at_once
                if (found := find(family, slots, want, at_once or 0, effect.own)) is not None:
                    return found
            return None

        return self._query(query)

    def _family(self) -> list[Ancestor]:
        """Return the run and its ancestors."""
        family = [Ancestor(self._run.id, waits=True)]
        while (child := self._store.children([family[-1].run_id]).get(family[-1].run_id)) is not None:
            parent = self._store.get(child.parent_id)
            if parent is None or parent.state in ENDED:
                break
            family.append(Ancestor(parent.id, waits=self._awaits(parent, child)))
        return family

    def _awaits(self, parent: RunRecord, child: ChildRecord) -> bool:
        """Return True if the parent waits for this child, or for its group."""
        if parent.waiting_for != ANY_QUEUE:
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

    def group(self, effect: PeekGroup | PeekMembers | PeekTaken) -> GroupRecord | list[Member] | set[str] | None:
        """Return a group of children, some of its children, or which of these ids runs have."""

        def query() -> GroupRecord | list[Member] | set[str] | None:
            if isinstance(effect, PeekGroup):
                return self._store.group(effect.group_id)
            if isinstance(effect, PeekMembers):
                return self._store.members(effect.group_id, effect.after, effect.count, is_lost=effect.is_lost)
            return set(self._store.states(effect.run_ids))

        return self._query(query)

    def tags(self) -> dict[str, str]:
        """Return the tags of the run, as they are stored."""
        return self._query(lambda: self._store.tags([self._run.id]).get(self._run.id, {}))

    def _query(self, query: Callable[[], T]) -> T:
        def with_own_session() -> T:
            sessions.restore_used(conf.DATABASE)
            return query()

        return self._answered(lambda: self._delegate.call(with_own_session))

    def _answered(self, query: Callable[[], T]) -> T:
        try:
            return query()
        except Exception as error:  # the next pass reads what was really committed
            raise pass_aborted(self._run, error) from error


def may_have_history(run: RunRecord) -> bool:
    """Return True if a run that was just claimed may have entries. At the first claim none can have been written."""
    return not is_of_first_claim(run.fence) or run.replay_of_id is not None


def pass_aborted(run: RunRecord, error: Exception) -> PassAborted:
    """Log why the store has not done what the pass asked for, and return the exception that ends the pass."""
    if isinstance(error, ChildRefused):
        logger.warning("run %s: %s, and the next pass finds it so", run.id, error, extra={"run_id": run.id})
        return PassAborted(str(error))
    with suppress(Exception):
        logger.warning("run %s: the store did not answer: %s", run.id, error)
    return PassAborted(f"the store did not answer: {error}")
