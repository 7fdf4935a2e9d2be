"""The history stream: a reader that takes the events in their order has the history, wherever it was cut off."""

from __future__ import annotations

import gc
import random
import tracemalloc
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from django.test import override_settings

from durable import Break, Context, Continue, CriticalError, get_run, workflow
from durable.api import broadcaster, changes
from durable.api.changes import UNKNOWN, Digests, KnownEntry, ReaderState
from durable.listings.problems import ProblemError
from durable.models import Run
from tests.api.conftest import ALL, Api, MakeApi, problem
from tests.api.streaming import Reader
from tests.api.workflows import ask, loop
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db


NAP = 3600


def undo(_rollback: Any, _output: Any) -> None:
    """Undoes nothing."""


@workflow(name="tests.api.rich")
def rich(ctx: Context, turns: int) -> int:
    """Steps that are compensated, a loop that prunes, waits, and a failure in the end."""
    ctx.rollback_checkpoint("from here")
    for number in range(3):
        ctx.step(f"book {number}", int, rollback=undo)
    ctx.sleep("first", NAP)

    def turn(c: Context, n: int) -> Any:
        c.step("work", int)
        c.sleep("rest", NAP)
        return Continue(n + 1) if n + 1 < turns else Break(n)

    ctx.loop("turns", turn, state=0, history_prune_interval=2)
    ctx.queue.next_batch("mail", names=["mail"], timeout=NAP)
    raise CriticalError("enough")


def go_on(run_id: str) -> None:
    """End its sleeps and pass it once."""
    if get_run(run_id).state in ("sleeping", "pending"):
        get_run(run_id).wake(end_sleeps=True)
        pass_once(get_run(run_id))


def test_first_all_then_what_is_new(api: Api) -> None:
    pass_once(rich.using(id="a").start(1))
    reader = Reader(api, "a")
    assert reader.read() == ["entry"] * 5 + ["run"]
    assert reader.read() == []
    go_on("a")
    changed = reader.read()
    assert changed == ["entry"] * 4 + ["run"]  # the sleep that ended; the loop, its step and its sleep
    reader.assert_current()
    assert all(entry["payloads"] is None for entry in reader.entries.values())


def test_new_tags_are_sent_while_a_step_is_executed(api: Api) -> None:
    reader = Reader(api, "a")
    found: list[tuple[list[str], dict[str, Any]]] = []

    @workflow(name="tests.api.stages")
    def stages(ctx: Context) -> None:
        for stage in ("new", "paid"):
            ctx.tag(stage=stage)
            ctx.step(stage, lambda: found.append((reader.read(), reader.run["tags"])))

    pass_once(stages.using(id="a", tags={"tenant": "acme"}).start())
    assert found == [
        (["entry", "run"], {"stage": "new", "tenant": "acme"}),
        (["entry", "entry", "run"], {"stage": "paid", "tenant": "acme"}),
    ]


def test_a_run_that_has_ended_is_sent_once(api: Api) -> None:
    pass_once(loop.using(id="a").start(1))
    reader = Reader(api, "a")
    assert reader.read() == ["entry", "entry", "run"]
    get_run("a").cancel()
    assert reader.read() == ["run", "end"]
    assert not reader.has_ended
    assert reader.read() == []
    assert reader.has_ended


def test_a_run_that_is_recovered_goes_on(api: Api) -> None:
    pass_once(rich.using(id="a").start(1))
    for _ in range(6):
        go_on("a")
    get_run("a").send("mail")
    for _ in range(5):  # the failure, and three rollbacks
        if get_run("a").state != "failed":
            pass_once(get_run("a"))
    reader = Reader(api, "a")
    assert reader.read()[-1] == "end"
    assert reader.run["state"] == "failed"
    assert reader.read() == []
    assert reader.has_ended
    get_run("a").recover()
    assert "run" in reader.read()
    assert not reader.has_ended
    reader.assert_current()


def test_what_a_replay_in_place_took_back_is_void(api: Api) -> None:
    pass_once(loop.using(id="a").start(4))
    reader = Reader(api, "a")
    reader.read()
    get_run("a").replay("step 2", in_place=True)
    pass_once(get_run("a"))  # as many entries as before
    assert reader.read()[0] == "reset"
    reader.assert_current()


def test_a_reader_that_stays_gets_what_is_removed(api: Api) -> None:
    pass_once(loop.using(id="a").start(4))
    follower = changes.Follower(lambda: Run.objects.get(pk="a"))
    assert len(follower.look().entries) == 5
    get_run("a").replay("step 2", in_place=True)
    news = follower.look()
    assert (sorted(news.removed), news.entries, news.is_reset) == (["rest", "step 2", "step 3"], [], False)
    pass_once(get_run("a"))
    assert [each.location for each in follower.look().entries] == ["step 2", "step 3", "rest"]


def test_a_run_without_a_pass_costs_one_query(api: Api, django_assert_num_queries: Callable[..., Any]) -> None:
    pass_once(loop.using(id="a").start(4))
    follower = changes.Follower(lambda: Run.objects.get(pk="a"))
    follower.look()
    with django_assert_num_queries(1):
        assert not follower.look().entries
    get_run("a").send("q")
    assert follower.look().has_changed


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_wherever_he_is_cut_off_a_reader_goes_on(api: Api, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """One reader asks now and then, gets small chunks, and forgets what came after some random event."""
    chance = random.Random(seed)
    monkeypatch.setattr(changes, "CHUNK", 2)
    monkeypatch.setattr("durable.api.stream._MOST_EVENTS", 3)
    rich.using(id="a").start(7)
    readers = [Reader(api, "a") for _ in range(2)]
    for _ in range(30):
        if chance.random() < 0.5:
            move(chance)
        for reader in readers:
            if chance.random() < 0.5:
                reader.read()
    for reader in readers:
        for _ in range(200):  # chunks are small; without an end the reader would get the same for ever
            if not reader.read():
                break
        reader.assert_current()


def move(chance: random.Random) -> None:
    handle = get_run("a")
    if handle.state == "failed":
        handle.recover()
    elif chance.random() < 0.15 and handle.history():
        handle.replay(chance.choice(handle.history()).location, in_place=True)
    elif chance.random() < 0.2:
        handle.send("mail", 1)
    elif handle.state == "rolling_back":
        pass_once(handle)
    else:
        go_on("a")


class TestPolling:
    def test_events_as_json(self, api: Api) -> None:
        pass_once(loop.using(id="a").start(1))
        for accept in ("application/json", "text/event-stream"):
            assert api.get("/runs/a/events", Accept=accept)["Cache-Control"] == "no-store"
        first = api.get("/runs/a/events").json()
        assert [each["event"] for each in first["events"]] == ["entry", "entry", "run"]
        nothing = api.get(f"/runs/a/events?wait=0.05&after={first['last_event_id']}").json()
        assert nothing == {"events": [], "last_event_id": first["last_event_id"], "has_ended": False}
        get_run("a").cancel()
        rest = api.get(f"/runs/a/events?wait=30&after={first['last_event_id']}").json()
        assert ([each["event"] for each in rest["events"]], rest["has_ended"]) == (["run", "end"], True)
        assert api.get(f"/runs/a/events?wait=30&after={rest['last_event_id']}").status_code == 204

    def test_a_poll_waits_for_news(self, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
        pass_once(ask.using(id="a").start())
        last = api.get("/runs/a/events").json()["last_event_id"]
        slept: list[float] = []

        def send_instead_of_waiting(seconds: float) -> None:
            if not slept:
                get_run("a").send("question", 1)
            slept.append(seconds)

        monkeypatch.setattr("durable.api.long_poll.time.sleep", send_instead_of_waiting)
        assert [each["event"] for each in api.get(f"/runs/a/events?wait=9&after={last}").json()["events"]] == ["run"]
        assert len(slept) == 1


def test_what_a_hook_takes_away_ends_the_stream(make_api: MakeApi) -> None:
    pass_once(loop.using(id="bob-1").start(1))
    reader = Reader(make_api(*ALL, name="bob"), "bob-1")
    assert reader.read()
    with override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"}):
        assert reader.read() == []
        reader.api.prefix = "/api"
        assert reader.api.get("/runs/bob-1/events").status_code == 200
    with override_settings(DURABLE={"API_RUNS": "tests.api.conftest.own_runs"}):
        problem(make_api(*ALL, name="ada").get("/runs/bob-1/events", Accept="text/event-stream"), 404, "run-not-found")


def test_a_stream_that_is_never_read_keeps_no_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server drops the response before it reads from it."""
    monkeypatch.setattr(broadcaster, "streams", broadcaster.Slots(broadcaster.streams._limits))
    slot = broadcaster.streams.take("ada")

    async def chunks() -> AsyncIterator[bytes]:
        yield b""
        raise AssertionError("no client reads it")

    kept = slot.released_after(chunks())
    assert broadcaster.streams.streams == 1
    del kept
    gc.collect()
    assert broadcaster.streams.streams == 0
    slot.release()
    assert broadcaster.streams.streams == 0


def test_a_slot_that_was_lost_is_free_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client left before the first read, and the response is not garbage-collected yet."""
    monkeypatch.setattr(broadcaster, "streams", broadcaster.Slots(broadcaster.streams._limits))
    monkeypatch.setattr(broadcaster, "MOST_OF_ONE", 1)
    lost = broadcaster.streams.take("ada")
    with pytest.raises(ProblemError, match="1 of yours"):
        broadcaster.streams.take("ada")
    monkeypatch.setattr(broadcaster, "BEGINS_WITHIN", 0.0)
    found = broadcaster.streams.take("ada")
    assert broadcaster.streams.begin(found)
    assert not broadcaster.streams.begin(lost)  # it was late, and another stream has the slot
    lost.release()
    assert broadcaster.streams.streams == 1
    found.release()
    assert broadcaster.streams.begin(lost)
    lost.release()
    assert broadcaster.streams.streams == 0


# -- what is kept of a history for each open stream: as much as is needed, and little of it


ENTRIES = 20_000


def test_an_entry_takes_few_bytes() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        state = ReaderState()
        for key in range(ENTRIES):
            state.put(key + 1, key, f"turns/~{key}/a step with a long name")
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert len(state) == ENTRIES
    assert taken / ENTRIES < 40


@pytest.mark.parametrize("seed", range(5))
def test_it_knows_what_was_put_in(seed: int) -> None:
    """Beside a plain dict, with keys in any order and entries that go."""
    chance = random.Random(seed)
    state, plain = ReaderState(), dict[int, KnownEntry]()
    for _ in range(1500):
        key, digest = chance.randrange(1, 2000), chance.choice([UNKNOWN, chance.randrange(2**63)])
        state.put(key, digest, f"place {key} \ud800")
        plain[key] = KnownEntry(key, digest, f"place {key} \ud800")
        if chance.random() < 0.02:
            kept = {each for each in plain if chance.random() < 0.9}
            gone = state.keep(kept)
            assert gone == [plain[each] for each in sorted(plain) if each not in kept]
            plain = {each: plain[each] for each in kept}
        assert len(state) == len(plain)
        assert state.newest == max(plain, default=0)
        some = chance.randrange(1, 2000)
        assert state.digest(some) == (plain[some].digest if some in plain else None)
    assert list(state.digests) == [(each, plain[each].digest) for each in sorted(plain)]
    assert [each.location for each in state.keep(set())] == [plain[each].location for each in sorted(plain)]


def test_marks_go_in_their_order() -> None:
    digests = Digests([(3, 30), (1, 10), (2, 20)])
    assert digests.first(2) == [(3, 30), (1, 10)]
    digests.drop(2)
    assert (len(digests), digests.first(9)) == (1, [(2, 20)])
