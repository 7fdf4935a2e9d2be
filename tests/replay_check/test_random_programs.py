"""The check and a worker's next pass agree on random programs, with plain and with encrypted values.

The programs have children, maps, races, branches, pruned loops and versions. The program of a run is looked up by the
run's id, so that "a deploy" is another program for the same id.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any, Final

import pytest
from cryptography.fernet import Fernet

from durable import Break, Context, Continue, workflow
from durable.core import registry
from durable.core.records import ENDED
from durable.crypto import FernetCodec
from durable.testing import Harness
from tests.replay_check.conftest import OTHERWISE, has_diverged, kept, verdict_of

pytestmark = pytest.mark.slow

Program = list[dict[str, Any]]

ROUNDS: Final = 60
PROGRAMS: dict[str, Program] = {}
KINDS: Final = ["step", "step", "sleep", "wait", "child", "start", "map", "join", "race", "loop", "block", "version"]


@pytest.fixture(autouse=True)
def child() -> Iterator[Any]:
    @workflow(name="random_programs.child")
    def made(ctx: Context, days: int, number: int = 0) -> int:
        ctx.step("work", int, number)
        if days:
            ctx.sleep("wait", f"{days} days")
        return number

    yield made
    registry.registry.unregister(made)


def drawn_program(drawn: random.Random, depth: int = 0) -> Program:
    return [drawn_operation(drawn, f"{depth}{place}", depth) for place in range(drawn.randint(1, 5))]


def drawn_operation(drawn: random.Random, name: str, depth: int) -> dict[str, Any]:
    kind = drawn.choice(KINDS[:8] if depth == 2 else KINDS)
    made: dict[str, Any] = {"kind": kind, "name": f"{kind} {name}", "days": drawn.choice([0, 1, 2])}
    if kind in ("join", "race"):
        branches = drawn.randint(2, 3)
        made["branches"] = {
            f"branch {number}": [] if depth == 2 else drawn_program(drawn, depth + 1) for number in range(branches)
        }
    elif kind in ("loop", "block"):
        made["body"] = drawn_program(drawn, depth + 1)
        made["times"] = drawn.choice([1, 2, 5])
    elif kind in ("map", "version"):
        made["number"] = drawn.randint(1, 3)
    return made


def play(ctx: Context, program: Program) -> list[Any]:
    return [perform(ctx, each) for each in program]


def perform(ctx: Context, each: dict[str, Any]) -> Any:
    name, days = each["name"], each["days"]
    match each["kind"]:
        case "step":
            return ctx.step(name, str, name)
        case "sleep":
            return ctx.sleep(name, f"{days} days")
        case "wait":
            return [message.body for message in ctx.queue.next_batch(name, names=["note"], timeout=f"{days} days")]
        case "child":
            return ctx.child(name, "random_programs.child", days)
        case "start":
            return ctx.start_child(name, "random_programs.child", days).id
        case "map":
            return ctx.map(name, "random_programs.child", [(days, number) for number in range(each["number"])])
        case "join":
            return ctx.join(name, {key: branch(body) for key, body in each["branches"].items()})
        case "race":
            return ctx.race(name, {key: branch(body) for key, body in each["branches"].items()}).winner
        case "block":
            return ctx.try_block(name, branch(each["body"])) is not None
        case "version":
            return ctx.get_version(name, each["number"])
        case _:
            return ctx.loop(name, iterations(each), 0, history_prune_interval=2, history_size=1)


def branch(body: Program) -> Callable[[Context], int]:
    return lambda ctx: len(play(ctx, body))


def iterations(each: dict[str, Any]) -> Callable[[Context, int], Break[int] | Continue[int]]:
    def iteration(ctx: Context, number: int) -> Break[int] | Continue[int]:
        play(ctx, each["body"])
        return Break(number) if number + 1 >= each["times"] else Continue(number + 1)

    return iteration


def follows(ctx: Context) -> int:
    return len(play(ctx, PROGRAMS[ctx.run_id]))


def bodies(program: Program) -> Iterator[Program]:
    """Yield each list of operations in the program."""
    yield program
    for each in program:
        for inner in (*each.get("branches", {}).values(), *([each["body"]] if "body" in each else [])):
            yield from bodies(inner)


def changed(program: Program, drawn: random.Random) -> Program:
    """Return the program with one change."""
    found = deepcopy(program)
    body = drawn.choice([each for each in bodies(found) if each])
    place = drawn.randrange(len(body))
    match drawn.choice(["add", "end", "kind", "rename", "order", "remove", "branch", "inputs"]):
        case "add":
            body.insert(place, drawn_operation(drawn, "new", 2))
        case "end":
            del body[place:]
        case "kind":
            body[place] = {**drawn_operation(drawn, "new", 2), "name": body[place]["name"]}
        case "rename":
            body[place]["name"] = "renamed"
        case "order":
            body.append(body.pop(place))
        case "branch" if "branches" in body[place]:
            branches = body[place]["branches"]
            branches["renamed"] = branches.pop(drawn.choice(sorted(branches)))
        case "inputs" if "number" in body[place]:
            body[place]["number"] += 1
        case _:
            del body[place]
    return found


def has_block(program: Program) -> bool:
    """Return whether an operation that is gone may be told later than at the next pass.

    It is told when the code has come out of the block in which it waits. A block has no record of its own, and what is
    behind one that failed is recorded too.
    """
    return any(each["kind"] == "block" for body in bodies(program) for each in body)


def has_ended(run_id: str) -> bool:
    return kept(run_id).state in ENDED


def drive(h: Harness, drawn: random.Random) -> Iterator[None]:
    """Let time pass and messages come, as a service sees it; yield whenever everything rests.

    Which branch of a race wins in the next pass is not known before. At rest none does, unless its code has changed.
    """
    for _ in range(drawn.randint(1, 6)):
        h.settle()
        yield
        if has_ended("run"):
            return
        if drawn.random() < 0.5:
            h.advance("1 day")
        else:
            h.send("run", "note", "text")
    h.settle()
    yield


@pytest.mark.parametrize("is_encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("group", range(3))
def test_the_check_says_what_a_pass_comes_to(group: int, is_encrypted: bool) -> None:
    told = silent = 0
    for number in range(ROUNDS * group, ROUNDS * (group + 1)):
        drawn = random.Random(f"{number} {is_encrypted}")
        codec = FernetCodec(keys=[Fernet.generate_key().decode()]) if is_encrypted else None
        program = PROGRAMS["run"] = drawn_program(drawn)
        with Harness(strict=False, codec=codec) as h:
            run = h.start(follows, id="run")
            for _ in drive(h, drawn):
                assert verdict_of(run.id).finding is None, f"{number}, as it was: {program}"
            if has_ended(run.id):
                continue
            other = PROGRAMS["run"] = changed(program, drawn)
            found = verdict_of(run.id).finding
            h.run(run.id)
            if found is None or found.kind not in OTHERWISE:
                assert (found is not None) == has_diverged(run.id), f"{number}: {found}\n{program}\n{other}"
            if found is None and not has_ended(run.id) and not has_block(program):
                for _ in drive(h, drawn):
                    assert not has_diverged(run.id), f"{number}, later: {program}\n{other}"
            told += found is not None
            silent += found is None
    assert told > 5
    assert silent > 5
