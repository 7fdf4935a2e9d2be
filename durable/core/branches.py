"""Join and race: branches that run concurrently, each parking only itself.

Owns the records of branches. A branch that has ended is recorded in the entry of its join or race and is not run again.
A failed branch is recorded with the failures it came from, so that recovery can reset them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from durable.core.bodies import run_body
from durable.core.control_flow import BranchCancelled, ControlFlow, Evicted, LeaseLost, NotRestored, Park, PassAborted
from durable.core.effects import SAVE, Fork, Operation
from durable.core.errors import (
    ContractError,
    EntryInProgressError,
    ErrorInfo,
    HistoryDivergedError,
    JoinError,
    RaceError,
    RollbackCheckpointError,
)
from durable.core.journal import Node
from durable.core.location import escape, is_within, join, parent
from durable.core.mistakes import is_mistake
from durable.core.numbers import check_whole
from durable.core.once import asked_anew, settle
from durable.core.outcomes import is_unsettled
from durable.core.records import EntryKind, EntryRecord, EntryStatus
from durable.core.results import Failure, RaceResult, origins_of, with_failure
from durable.core.scope import Branch, Scope

Bodies = Mapping[str, Callable[..., Any]]

_PENDING = "pending"
_RUNNING = "running"
_COMPLETED = "completed"
_FAILED = "failed"
_CANCELLED = "cancelled"
_SHOWN = 20  # branches that an error names

# Which error of several branches leaves the join or race: the one that ends the pass first.
_PRIORITY: tuple[type[BaseException], ...] = (
    LeaseLost,
    PassAborted,
    Evicted,
    NotRestored,
    BranchCancelled,
    HistoryDivergedError,
    EntryInProgressError,
    RollbackCheckpointError,
)


def join_branches(scope: Scope, name: str, bodies: Bodies, at_once: int | None = None) -> Operation:
    """Run all branches until all have settled, `at_once` at a time. Return their outputs by name, or raise JoinError.

    `at_once` is a number of at least 1, or None for no bound; else ValueError is raised.
    """
    if at_once is not None:
        check_whole("at_once", at_once, least=1, or_else=", or None for all branches at a time")
    fork = _match(scope, EntryKind.JOIN, name, bodies)
    if fork.entry.status != EntryStatus.COMPLETED:
        yield from fork.run(is_decided=lambda: False, at_once=at_once)
        fork.raise_what_ends_the_pass()
        scope.journal.finish(fork.entry)
        yield SAVE
    fork.observe()
    if errors := fork.errors():
        failure = Failure("join", name, (fork.entry.location,), ErrorInfo("JoinError", str(JoinError(errors))))
        raise with_failure(JoinError(errors), failure)
    return {branch: fork.output_of(branch) for branch, _ in fork.in_order()}


def race_branches(scope: Scope, name: str, bodies: Bodies) -> Operation:
    """Run the branches until one has completed. Return its name and value, or raise RaceError if all have failed."""
    if not bodies:
        raise ValueError(f'race "{name}" needs at least one branch')
    fork = _match(scope, EntryKind.RACE, name, bodies)
    if fork.entry.status != EntryStatus.COMPLETED:
        if not fork.has_winner():
            yield from fork.run(is_decided=fork.has_winner)
        fork.raise_what_ends_the_pass()
        yield from fork.settle_losers()
        fork.cancel_losers()
        scope.journal.finish(fork.entry)
        yield SAVE
    fork.observe()
    winner = fork.entry.data["winner"]
    if winner is None:
        errors = fork.errors()
        failure = Failure("race", name, (fork.entry.location,), ErrorInfo("RaceError", str(RaceError(errors))))
        raise with_failure(RaceError(errors), failure)
    return RaceResult(winner, fork.output_of(winner))


def _match(scope: Scope, kind: EntryKind, name: str, bodies: Bodies) -> _Fork:
    if not isinstance(bodies, Mapping):
        raise TypeError(f"the branches of a {kind} are a dict of name to function, not {type(bodies).__name__}")
    segments = {branch: escape(branch) for branch in bodies}
    node = scope.cursor.match(kind, name)
    entry = node.entry
    if entry is None:
        data: dict[str, Any] = {"branches": {branch: {"status": _PENDING} for branch in bodies}}
        if kind == EntryKind.RACE:
            data["winner"] = None
        entry = scope.create(node, kind, data=data, status=EntryStatus.RUNNING)
        scope.journal.update(entry)
    elif entry.status != EntryStatus.COMPLETED and (changed := entry.data["branches"].keys() ^ bodies.keys()):
        scope.cursor.diverged(
            f'the {kind} "{node.location}" was begun with the branches [{_listed(entry.data["branches"], repr)}], the code '
            f"now has [{_listed(bodies, repr)}] ({_listed(changed, str)} changed)",
            *(join(node.location, escape(each)) for each in sorted(changed)),
        )
    return _Fork(scope, node, entry, bodies, segments)


def _listed(branches: Iterable[str], as_text: Callable[[str], str]) -> str:
    """Return the first names in their order, and how many more there are."""
    names = sorted(branches)
    more = [f"and {len(names) - _SHOWN:,} more"] if len(names) > _SHOWN else []
    return ", ".join([*map(as_text, names[:_SHOWN]), *more])


class _Fork:
    """The branches of one join or race during one pass."""

    def __init__(self, scope: Scope, node: Node, entry: EntryRecord, bodies: Bodies, segments: dict[str, str]) -> None:
        self.scope = scope
        self.journal = scope.journal
        self.node = node
        self.entry = entry
        self.bodies = bodies
        self.segments = segments
        self.running: dict[str, Branch] = {}
        self.park: Park | None = None
        self.ending: BaseException | None = None

    @property
    def statuses(self) -> dict[str, dict[str, Any]]:
        """The record of each branch: its status, and its output or its error and origins."""
        branches: dict[str, dict[str, Any]] = self.entry.data["branches"]
        return branches

    def run(self, is_decided: Callable[[], bool], at_once: int | None = None) -> Operation:
        """Run the branches that have not ended, at most `at_once` at a time, begun branches first."""
        left = [name for name in self.bodies if self.statuses[name]["status"] in (_PENDING, _RUNNING)]
        if at_once is None or at_once >= len(left):
            operations = [self._branch(name, self.bodies[name]) for name in left]
        else:
            begun = [name for name in left if self.statuses[name]["status"] == _RUNNING]
            waiting = iter([name for name in left if self.statuses[name]["status"] == _PENDING])
            lanes = [*begun, *[None] * (at_once - len(begun))]
            operations = [self._lane(name, waiting, at_once) for name in lanes]
        if operations:
            yield Fork(operations, is_decided)

    def _lane(self, name: str | None, waiting: Iterator[str], at_once: int) -> Operation:
        """Run branches one after the other, until one parks or ends the pass. A parked branch keeps its place."""
        if name is None:
            name = self._admitted(waiting, at_once)
        while name is not None:
            yield from self._branch(name, self.bodies[name])
            name = self._admitted(waiting, at_once) if self.statuses[name]["status"] != _RUNNING else None

    def _admitted(self, waiting: Iterator[str], at_once: int) -> str | None:
        """Begin the next waiting branch and return its name; None if none is left or `at_once` are running.

        More than `at_once` may be running if an earlier version of the code allowed more.
        """
        with self.journal.lock:
            if sum(each["status"] == _RUNNING for each in self.statuses.values()) >= at_once:
                return None
            name = next(waiting, None)
            if name is not None:
                self._set(name, status=_RUNNING)
            return name

    def _branch(self, name: str, body: Callable[..., Any]) -> Operation:
        branch = self.running[name] = Branch(self.scope.branch)
        try:
            scope = Scope(self.journal, self._place(name), self.scope, branch)
            if self.scope.doubt is not None:
                scope.doubt = self.scope.doubt.of_branch(self.entry, name)
            self._set(name, status=_RUNNING)
            value = yield from run_body(scope, body)
            what = f'the output of branch "{name}" of "{self.node.location}"'
            output = self.scope.environment.encode(value, what, "output", scope.location)
        except Park as park:
            with self.journal.lock:
                self.park = park if self.park is None else self.park.merged(park)
        except ControlFlow as ending:
            self._ended(branch, ending)
        except ContractError as error:
            self._ended(branch, error)
        except Exception as error:
            if is_mistake(error, self.scope.environment.mistakes):
                self._mistaken(branch, error)
            else:
                self._failed(name, branch, error)
        except BaseException:
            # An async branch is cancelled through its task. If this race did not cancel it, something around it did.
            if not branch.is_lost:
                raise
        else:
            self._completed(name, output)

    def _place(self, name: str) -> Node:
        segment = self.segments.get(name) or escape(name)  # the code may lack a branch of a fork that has ended
        node = self.node.child(segment)
        if node is None:
            with self.journal.lock:
                node = self.journal.attach(self.node, segment, Node(join(self.node.location, segment)))
        return node

    # -- how a branch ends

    def _completed(self, name: str, output: str) -> None:
        with self.journal.lock:
            if self.has_winner():
                return
            self._set(name, status=_COMPLETED, output=output)
            if self.entry.kind == EntryKind.RACE:
                self.journal.update(self.entry, data={**self.entry.data, "winner": name})
                for other, branch in self.running.items():
                    branch.is_lost = other != name

    def _failed(self, name: str, branch: Branch, error: Exception) -> None:
        info = ErrorInfo.of(error)
        with self.journal.lock:
            if not branch.is_lost:
                self._set(
                    name,
                    status=_FAILED,
                    error=[info.type, info.message, info.traceback],
                    origins=origins_of(error),
                )

    def _mistaken(self, branch: Branch, error: Exception) -> None:
        """End the pass, and the other branches with it, because of a mistake in a branch's code.

        The branch does not count as failed: it continues once its code is fixed.
        """
        if branch.is_cancelled():
            return
        with self.journal.lock:
            if self.journal.poison is None:
                self.journal.poison = error
        self._ended(branch, error)

    def _ended(self, branch: Branch, ending: BaseException) -> None:
        if branch.is_lost:
            return
        with self.journal.lock:
            if self.ending is None or _rank(ending) < _rank(self.ending):
                self.ending = ending

    def _set(self, name: str, **status: Any) -> None:
        with self.journal.lock:
            if status != self.statuses[name]:
                self.journal.update(
                    self.entry, data={**self.entry.data, "branches": {**self.statuses, name: dict(status)}}
                )

    # -- how the fork ends

    def has_winner(self) -> bool:
        """Return True if a race is decided."""
        return self.entry.data.get("winner") is not None

    def raise_what_ends_the_pass(self) -> None:
        """Raise the control flow or the contract error of a branch. If there is none, park until a branch can continue.

        Does nothing if the fork is decided.
        """
        if self.ending is not None:
            raise self.ending
        if self.has_winner():
            return
        if self.park is not None:
            raise self.park
        if self.scope.branch is not None and self.scope.branch.is_cancelled():
            raise BranchCancelled

    def _losers(self) -> list[str]:
        """Return the branches that have lost; [] if the race is not decided."""
        return [name for name in self.statuses if name != self.entry.data["winner"]] if self.has_winner() else []

    def settle_losers(self) -> Operation:
        """Ask about the losers' attempts of which nobody knows whether they were done, as far as that can be asked."""
        for name in self._losers():
            for node in list(self._place(name).walk()):
                entry = node.entry
                if entry is None or entry.status == EntryStatus.EXHAUSTED:
                    continue
                if is_unsettled(entry):
                    if entry.status == EntryStatus.HELD:  # no person is asked any more
                        self.journal.update(entry, **asked_anew(entry))
                    lost = ErrorInfo(
                        "BranchCancelled", f'branch "{name}" lost its race during attempt {entry.attempts}'
                    )
                    yield from settle(self.journal, entry, lost, holds=False)

    def cancel_losers(self) -> None:
        """Delete the losers' entries, except completed steps with a rollback handler and attempts of which nobody knows
        whether they were done, and cancel their children.

        Messages that no code acted on return to the inbox.
        """
        for name in self._losers():
            if self.statuses[name]["status"] in (_PENDING, _RUNNING):
                self._set(name, status=_CANCELLED)
                for wait in _idle_receipts(self._place(name)):
                    if not self._has_answered(wait):
                        self.journal.give_back(wait)
            self.journal.drop_children(self.node, self.segments[name])
            self.journal.drop_slots(self.node, self.segments[name])
            self.journal.prune(self.node, self.segments[name])

    def _has_answered(self, wait: EntryRecord) -> bool:
        """Return True if, after this wait, the code completed a message of a scope around the fork.

        The completion may depend on what the wait received.
        """
        scope = parent(wait.location)
        completions = self.scope.receipts.completions()
        return any(is_within(where, scope) and order > wait.ordinal for where, order in completions)

    def errors(self) -> dict[str, ErrorInfo]:
        return {name: ErrorInfo(*each["error"]) for name, each in self.in_order() if each["status"] == _FAILED}

    def output_of(self, name: str) -> Any:
        return self.scope.recorded(
            self._place(name).location, "the output of the branch", self.statuses[name]["output"]
        )

    def in_order(self) -> Iterable[tuple[str, dict[str, Any]]]:
        """Return the statuses in the order of the branches in the code, not in the record."""
        order = {name: number for number, name in enumerate(self.bodies)}
        return sorted(self.statuses.items(), key=lambda each: order.get(each[0], len(order)))

    def observe(self) -> None:
        """Note that the code has seen the end of the fork."""
        if self.scope.doubt is not None:
            self.scope.doubt.end_with_fork(self.journal, self.entry)
        self.scope.determinism.observe(self.entry)
        self.scope.receipts.learn(self.entry.location)


def _idle_receipts(place: Node) -> list[EntryRecord]:
    """Return the idle waits at and below `place`.

    A wait is idle if the code has since begun no operation and completed no message.
    """
    entry = place.entry
    if entry is not None and entry.kind == EntryKind.MESSAGE:
        received = entry.data.get("received", ())
        return [] if any(each["completed"] for each in received) else [entry] if received else []
    places = list((place.children or {}).values())
    if places and (entry is None or entry.kind not in (EntryKind.JOIN, EntryKind.RACE)):
        places = [max(places, key=_newest)]  # operations are sequential: only the last can be idle
    return [receipt for each in places for receipt in _idle_receipts(each)]


def _newest(place: Node) -> int:
    """Return the ordinal of the newest entry at or below `place`."""
    begun = [each.entry.ordinal for each in place.walk() if each.entry is not None]
    return max(begun, default=-1) if place.entry is None else max(place.entry.ordinal, *begun, -1)


def _rank(error: BaseException) -> int:
    for rank, kind in enumerate(_PRIORITY):
        if isinstance(error, kind):
            return rank
    return len(_PRIORITY)
