"""The loop: iterations with a scope each, a recorded state, and a history that is pruned as it grows.

Owns the loop's record. The iteration's number and state are part of each commit made inside it. The cost of an
iteration must not depend on how many came before.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from durable.core.bodies import run_body
from durable.core.effects import SAVE, Operation
from durable.core.journal import Node
from durable.core.location import iteration_segment, join
from durable.core.numbers import check_whole
from durable.core.records import EntryKind, EntryRecord, EntryStatus
from durable.core.results import Break, Continue
from durable.core.scope import Scope


def loop(
    scope: Scope, name: str, body: Callable[..., Any], state: Any, prune_interval: int, history_size: int | None
) -> Operation:
    """Run iterations until one breaks; return the value of the break."""
    check_whole("history_prune_interval", prune_interval, least=1)
    size = prune_interval if history_size is None else check_whole("history_size", history_size)
    node = scope.cursor.match(EntryKind.LOOP, name)
    entry = node.entry
    if entry is None:
        initial = scope.environment.encode(state, f'the state of loop "{name}"', "state", node.location)
        entry = scope.create(
            node, EntryKind.LOOP, data={"iteration": 0, "state": initial, "pruned": 0}, status=EntryStatus.RUNNING
        )
        scope.journal.update(entry)
    if entry.status != EntryStatus.COMPLETED:
        yield from _Loop(scope, node, entry, name, prune_interval, size, state is not None).run(body)
    scope.determinism.observe(entry)
    scope.receipts.learn(entry.location)
    return scope.recorded(entry.location, "the value of the loop", entry.output)


class _Loop:
    def __init__(
        self, scope: Scope, node: Node, entry: EntryRecord, name: str, interval: int, size: int, is_stateful: bool
    ) -> None:
        self.scope = scope
        self.journal = scope.journal
        self.node = node
        self.entry = entry
        self.name = name
        self.interval = interval
        self.size = size
        self.is_stateful = is_stateful
        seen = entry.data.get("moment")
        self.moment = datetime.fromisoformat(seen) if seen else scope.determinism.moment

    def run(self, body: Callable[..., Any]) -> Operation:
        while True:
            number = self.entry.data["iteration"]
            state = self.scope.recorded(self.entry.location, "the state of the loop", self.entry.data["state"], "state")
            outcome = yield from self._iterate(number, state, body)
            if isinstance(outcome, Break):
                what = f'the value of loop "{self.name}"'
                output = self.scope.environment.encode(outcome.value, what, "output", self.entry.location)
                self._prune(number + 1)
                self.journal.finish(self.entry, output=output)
                return
            self._advance(number + 1, outcome)
            if (number + 1) % self.interval == 0:
                self._prune(number + 1)
                yield SAVE

    def _iterate(self, number: int, state: Any, body: Callable[..., Any]) -> Operation:
        segment = iteration_segment(number)
        place = self.node.child(segment)
        if place is None:
            place = self.journal.attach(self.node, segment, Node(join(self.node.location, segment)))
        iteration = Scope(self.journal, place, self.scope)
        iteration.determinism.moment = max(iteration.determinism.moment, self.moment)
        iteration.receipts.learn(self.entry.location, but_not=place.location)
        iteration.guard.check_may_go_on()
        has_state = self.is_stateful or state is not None
        try:
            outcome = yield from run_body(iteration, body, *((state,) if has_state else ()))
        except Exception:
            self.scope.receipts.adopt(iteration.receipts)
            raise
        self.moment = iteration.determinism.moment
        if outcome is None and not has_state:
            return Continue()
        if not isinstance(outcome, Continue | Break):
            problem = "nothing" if outcome is None else repr(outcome)
            raise TypeError(
                f'iteration {number} of loop "{self.name}" returned {problem}; return Continue(state) to go on or '
                "Break(value) to end the loop"
            )
        if not place.children:  # the iteration recorded nothing
            assert self.node.children is not None
            self.node.children.pop(segment, None)
        return outcome

    def _advance(self, number: int, outcome: Continue) -> None:
        what = f'the state of loop "{self.name}"'
        state = self.scope.environment.encode(outcome.state, what, "state", self.entry.location)
        self.journal.update(
            self.entry,
            data={
                **self.entry.data,
                "iteration": number,
                "state": state,
                "moment": self.moment.isoformat(),
            },
        )

    def _prune(self, reached: int) -> None:
        """Delete the entries of all but the last `size` iterations."""
        first, keep_from = self.entry.data["pruned"], reached - self.size
        if keep_from <= first:
            return
        for number in range(first, keep_from):
            self.journal.prune(self.node, iteration_segment(number))
        self.journal.update(self.entry, data={**self.entry.data, "pruned": keep_from})
