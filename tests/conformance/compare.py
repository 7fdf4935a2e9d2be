"""Where two traces of a scenario differ, in sentences: ours from the reference's, ours from ours after a crash.

With the reference's everything is compared, but for what two right engines may do differently. Each such liberty is a
rule here:

- Calls in different branches of a join or race may interleave in any order; all others keep theirs.
- A branch that loses a race may be stopped before calls that the reference still made in the pass that decided it.
- How far the losers of a race and the branches of an undecided one are is only compared where they failed or completed,
  and a loser that was stopped before a call has not failed.
- A step in a branch that the trace calls "running" has ended: the reference flushes branches concurrently and loses
  what changed while it wrote. Whether the step succeeded follows from its last call.
- Which messages a run waits for is only compared in programs without branches: in a branch the reference forgets a wait
  for any message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations, zip_longest
from typing import TypeAlias

from tests.conformance.grammar import Body, Join, Json, Loop, Operation, Race, Step, Try, TryStep, operations
from tests.conformance.trace import CallTrace, EntryTrace, PassTrace, Trace

Lane: TypeAlias = tuple[str, str]  # a branch: the location of its join or race, its name
Lanes: TypeAlias = tuple[Lane, ...]  # the branches that a location stands in, outermost first

_OUTCOMES = ("completed", "failed")


def differences(program: Body, expected: Trace, got: Trace) -> list[str]:
    """What is wrong with `got`, one sentence each; none if it conforms."""
    found = []
    for number, (one, other) in enumerate(zip_longest(expected.passes, got.passes), start=1):
        if one is None or other is None:
            found.append(f"pass {number}: {_missing(one, other)}")
            continue
        found += [f"pass {number}: {text}" for text in _pass_differences(program, expected, number - 1, other)]
    found += _all_entry_differences(program, expected, got)
    return found


def changes(program: Body, undisturbed: Trace, crashed: Trace) -> list[str]:
    """What a crash changed, one sentence each.

    Branches may interleave in another order; all else has to be the same.
    """
    found = []
    for number, (one, other) in enumerate(zip_longest(undisturbed.passes, crashed.passes), start=1):
        if one is None or other is None:
            found.append(f"pass {number}: {_missing(one, other)}")
            continue
        found += [f"pass {number}: {text}" for text in call_differences(program, one.calls, other.calls)]
        if replace(one, calls=()) != replace(other, calls=()):
            found.append(f"pass {number}: expected {one}, got {other}")
    for location in sorted(undisturbed.entries.keys() | crashed.entries.keys()):
        before, after = undisturbed.entries.get(location), crashed.entries.get(location)
        if before != after:
            found.append(f"entry {location}: expected {before}, got {after}")
    return found


def same_json(one: Json, other: Json) -> bool:
    """Whether two values are the same JSON: True is not 1, a tuple is no list, 1.0 is not 1."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_json(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same_json, one, other))
    return bool(one == other)


def call_differences(program: Body, expected: Sequence[CallTrace], got: Sequence[CallTrace]) -> list[str]:
    """Calls that are missing, too many, or in an order that no interleaving of the branches gives."""
    found = [f"call {call} is missing" for call in expected if call not in got]
    found += [f"call {call} is too many" for call in got if call not in expected]
    found += [f"call {call} was made twice" for call in sorted(set(got)) if got.count(call) > 1]
    if found:
        return found
    lanes = {call: _lanes(program, call[0]) for call in expected}
    at = {call: index for index, call in enumerate(got)}
    return [
        f"call {second} came before {first}"
        for first, second in combinations(expected, 2)
        if at[first] > at[second] and not _concurrent(lanes[first], lanes[second])
    ]


def _missing(expected: PassTrace | None, got: PassTrace | None) -> str:
    return f"expected none, got {got}" if expected is None else f"is missing, expected {expected}"


def _pass_differences(program: Body, trace: Trace, number: int, got: PassTrace) -> Iterator[str]:
    expected = trace.passes[number]
    for name in ("state", "output", "error", "sleep_until_ms"):
        yield from _value_differences(name, getattr(expected, name), getattr(got, name))
    if expected.message is not None:
        yield from _value_differences("message", expected.message, got.message)
    if not any(isinstance(each, Join | Race) for each in operations(program)):
        yield from _value_differences("waiting_for", expected.waiting_for, got.waiting_for)
    optional = _calls_of_losers(program, trace, number)
    calls = [call for call in expected.calls if call not in optional or call in got.calls]
    yield from call_differences(program, calls, got.calls)
    yield from _value_differences("rollbacks", _lists(expected.rollbacks), _lists(got.rollbacks))


def _lists(pairs: Sequence[tuple[str, Json]]) -> list[list[Json]]:
    return [list(pair) for pair in pairs]


def _value_differences(name: str, expected: Json, got: Json) -> Iterator[str]:
    if not same_json(expected, got):
        yield f"{name}: expected {expected!r}, got {got!r}"


def _calls_of_losers(program: Body, trace: Trace, number: int) -> set[CallTrace]:
    """The pass's calls in a branch that lost, if it is the last pass that shows a call in it."""
    return {
        (path, call)
        for path, call in trace.passes[number].calls
        for lane in _lanes(program, path)
        if _has_lost(trace, lane) and not _is_called_after(program, trace, number, lane)
    }


def _has_lost(trace: Trace, lane: Lane) -> bool:
    entry = trace.entries.get(lane[0])
    return entry is not None and entry.kind == "race" and entry.fields["winner"] not in (None, lane[1])


def _is_called_after(program: Body, trace: Trace, number: int, lane: Lane) -> bool:
    later = trace.passes[number + 1 :]
    return any(lane in _lanes(program, path) for each in later for path, _ in each.calls)


def _stopped_losers(program: Body, expected: Trace, got: Trace) -> set[Lane]:
    """The branches that lost before calls which the reference made in them."""
    made = {call for each in got.passes for call in each.calls}
    left_out = [path for each in expected.passes for path, number in each.calls if (path, number) not in made]
    return {lane for path in left_out for lane in _lanes(program, path) if _has_lost(expected, lane)}


def _all_entry_differences(program: Body, expected: Trace, got: Trace) -> Iterator[str]:
    stopped = _stopped_losers(program, expected, got)
    for location in sorted(expected.entries.keys() | got.entries.keys()):
        one, other = expected.entries.get(location), got.entries.get(location)
        if one is None:
            yield f"entry {location}: expected none, got {other}"
        elif other is None:
            yield f"entry {location}: is missing, expected {one}"
        elif one.kind != other.kind:
            yield f"entry {location}: expected a {one.kind}, got a {other.kind}"
        else:
            for text in _entry_differences(program, expected, location, one, other, stopped):
                yield f"entry {location}: {text}"


def _entry_differences(
    program: Body, trace: Trace, location: str, one: EntryTrace, other: EntryTrace, stopped: set[Lane]
) -> Iterator[str]:
    for name in one.fields.keys() | other.fields.keys():
        expected, got = one.fields.get(name), other.fields.get(name)
        if name == "branches" and one.kind == "race":
            yield from _branch_differences(location, one, other, stopped)
        elif name == "status" and one.kind == "step" and expected == "running":
            if got not in (ended := _ended_statuses(program, trace, location)):
                yield f"status: expected one of {ended}, got {got!r}"
        else:
            yield from _value_differences(name, expected, got)


def _branch_differences(location: str, one: EntryTrace, other: EntryTrace, stopped: set[Lane]) -> Iterator[str]:
    expected, got = one.fields["branches"], other.fields["branches"]
    if expected.keys() != got.keys():
        yield f"branches: expected {sorted(expected)}, got {sorted(got)}"
        return
    for name, status in expected.items():
        if (location, name) in stopped and got[name] == "cancelled":
            continue
        if status in _OUTCOMES or got[name] in _OUTCOMES:
            yield from _value_differences(f"branch {name}", status, got[name])


def _ended_statuses(program: Body, trace: Trace, location: str) -> tuple[str, ...]:
    """The statuses that the step at this location may have after its last call."""
    numbers = [call for each in trace.passes for path, call in each.calls if path == location]
    step = _find(program, location)[0]
    step = step.step if isinstance(step, TryStep) else step
    assert isinstance(step, Step), f"{location} is no step"
    assert numbers, f"{location} was never called"
    return ("completed",) if step.failure_of(max(numbers)) is None else ("failed", "exhausted")


def _concurrent(one: Lanes, other: Lanes) -> bool:
    """Whether two locations stand in different branches of the same join or race."""
    mine = dict(one)
    return any(mine.get(location, branch) != branch for location, branch in other)


def _lanes(program: Body, location: str) -> Lanes:
    return _find(program, location)[1]


def _find(program: Body, location: str) -> tuple[Operation, Lanes]:
    """The operation at a location, and the branches it stands in."""
    body, lanes, path = program, list[Lane](), list[str]()
    segments = iter(location.split("/"))
    for segment in segments:
        path.append(segment)
        operation = next(each for each in body if getattr(each, "name", None) == segment)
        scope = "/".join(path)
        match operation:
            case Try():
                body = operation.body
            case Loop():
                body = operation.body
                path += [each for each in [next(segments, None)] if each is not None]
            case Join() | Race():
                branch = next(segments, None)
                if branch is not None:
                    body = dict(operation.branches)[branch]
                    lanes.append((scope, branch))
                    path.append(branch)
            case _:
                pass
    return operation, tuple(lanes)
