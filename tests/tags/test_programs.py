"""Programs drawn at random that tag their run: after a replay from anywhere it has the tags that it had there."""

from __future__ import annotations

import random
from functools import partial
from typing import Any, TypeAlias

import pytest

from durable import Break, Context, Continue, current_step, get_run, workflow
from durable.runtime import Runtime
from durable.testing import Harness
from tests.support.stores import settle

pytestmark = pytest.mark.slow

Program: TypeAlias = list[tuple[Any, ...]]

PROGRAMS = 40
seen: dict[str, dict[str, str]] = {}  # the tags of the run when a step was first called, by its location


def drawn(dice: random.Random, depth: int = 0) -> Program:
    """A program: each operation that a replay may begin with has a name of its own."""
    found: Program = []
    for number in range(dice.randint(2, 4)):
        kind = dice.choice(["tag", "tag", "step", "loop", "race", "block"] if depth < 2 else ["tag", "step"])
        name = f"{kind} {number}"
        if kind == "tag":
            found.append((kind, dice.choice("abcd"), dice.randint(0, 99)))
        elif kind == "step":
            found.append((kind, name))
        elif kind == "loop":
            found.append(
                (kind, name, drawn(dice, depth + 1), dice.randint(1, 5), dice.randint(1, 3), dice.randint(0, 2))
            )
        elif kind == "race":
            found.append((kind, name, drawn(dice, depth + 1), drawn(dice, depth + 1)))
        else:
            found.append((kind, name, drawn(dice, depth + 1)))
    return found


def note() -> None:
    step = current_step()
    seen.setdefault(step.location, get_run(step.run_id).tags)


def executed(program: Program, ctx: Context, *, at_once: bool = False) -> None:
    for operation in program:
        kind, name, *rest = operation
        if kind == "tag":
            ctx.tag(**{name: rest[0] if ctx.random.random() < 0.8 else -rest[0]})
            continue
        if not at_once:
            ctx.step(f"before {name}", note)
        if kind == "loop":
            body, rounds, interval, size = rest
            ctx.loop(name, partial(iterated, body, rounds), state=0, history_prune_interval=interval, history_size=size)
        elif kind == "race":
            winner, loser = rest
            ctx.race(name, {"loser": partial(lost, loser), "winner": partial(executed, winner)})
        elif kind == "block":
            ctx.try_block(name, partial(broken, rest[0]))


def iterated(body: Program, rounds: int, ctx: Context, number: int) -> Any:
    if number % 2 == 0:
        ctx.tag(round=number)
    executed(body, ctx)
    return Break() if number == rounds else Continue(number + 1)


def lost(body: Program, ctx: Context) -> None:
    executed(body, ctx, at_once=True)
    ctx.queue.next("never")


def broken(body: Program, ctx: Context) -> None:
    executed(body, ctx)
    ctx.step("fails", failing, max_retries=0)


def failing() -> None:
    raise ValueError("no")


@workflow(name="tests.tag_programs.any")
def any_program(ctx: Context, seed: int) -> None:
    executed(drawn(random.Random(seed)), ctx)
    ctx.step("last", note)


def check(seed: int, run_id: str, finish: Any) -> int:
    """Replay the run from each of its places; how many there were."""
    seen.clear()
    run = any_program.using(id=run_id, tags={"a": "start", "tenant": "acme"}).start(seed)
    finish()
    assert run.state == "completed", run.summary
    done, at_places = run.tags, {place: tags for place, tags in seen.items() if "/" not in place}
    for place, tags in at_places.items():
        begins = [place, *([place.removeprefix("before ")] if place != "last" and "step" not in place else [])]
        for begin in begins:
            new = run.replay(begin)
            assert new.tags == tags, (seed, "as a new run", begin)
            finish()
            assert (new.state, new.tags) == ("completed", done), (seed, "as a new run", begin)
            run.replay(begin, in_place=True)
            assert run.tags == tags, (seed, "in place", begin)
            finish()
            assert (run.state, run.tags) == ("completed", done), (seed, "in place", begin)
    return len(at_places)


def test_tags_are_what_they_were_where_a_replay_begins() -> None:
    places = 0
    for seed in range(PROGRAMS):
        with Harness() as h:
            places += check(seed, "run", h.settle)
    assert places > 3 * PROGRAMS


def test_so_they_are_in_the_database(at: Runtime) -> None:
    for seed in range(1_000, 1_004):
        check(seed, f"run-{seed}", settle)
