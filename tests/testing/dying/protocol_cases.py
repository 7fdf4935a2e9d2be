"""Tests that are hard to execute again."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import IsolatedAsyncioTestCase

import pytest
from django.core.mail import send_mail
from django.test import TestCase
from hypothesis import given
from hypothesis import strategies as st

from durable import Context, workflow
from durable.testing import Harness, SimulatedCrash

made: dict[str, int] = {}


def count(name: str) -> int:
    made[name] = made.get(name, 0) + 1
    return made[name]


@pytest.fixture(scope="session")
def of_the_session() -> Iterator[int]:
    yield count("session")
    count("session ended")


@pytest.fixture(scope="module", autouse=True)
def of_the_module(of_the_session: int) -> Iterator[None]:
    count("module")
    yield
    print("fixtures:", made)


@pytest.fixture(scope="module")
def lasting_harness() -> Iterator[Harness]:
    with Harness() as h:
        yield h


@pytest.fixture(params=["one", "two"])
def parametrized(request: pytest.FixtureRequest) -> str:
    count("function")
    return str(request.param)


@workflow(name="dying.plain")
def plain(ctx: Context, number: int = 2) -> int:
    for each in range(number):
        ctx.step(f"step {each}", lambda: None)
    return number


def test_fixtures(durable_harness: Harness, parametrized: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not list(tmp_path.iterdir()), "the directory is new"
    (tmp_path / "mark").touch()
    monkeypatch.setenv("DYING", parametrized)
    assert durable_harness.finish(durable_harness.start(plain)).output == 2


class TestOfAClass:
    @classmethod
    def setup_class(cls) -> None:
        count("class")

    @classmethod
    def teardown_class(cls) -> None:
        count("class ended")

    def test_it(self, durable_harness: Harness) -> None:
        assert made.get("class ended") is None
        assert durable_harness.finish(durable_harness.start(plain)).output == 2


class DjangoTests(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        count("test data")

    async def test_async(self) -> None:
        with Harness() as h:
            assert (await h.afinish(await h.astart(plain))).output == 2

    def test_sync(self) -> None:
        with Harness(store="database") as h:
            assert h.finish(h.start(plain)).output == 2
            with self.subTest("again"):
                assert h.run(h.start(plain)).state == "completed"


class AsyncTests(IsolatedAsyncioTestCase):
    async def test_isolated(self) -> None:
        with Harness() as h:
            assert (await h.afinish(await h.astart(plain))).output == 2


def test_several_runs_and_harnesses(durable_harness: Harness) -> None:
    for _ in "ab":
        assert durable_harness.finish(durable_harness.start(plain)).output == 2
    with Harness() as h:
        run = h.start(plain, 3)
        assert h.run(run).output == 3


def test_a_harness_of_the_module(lasting_harness: Harness) -> None:
    assert lasting_harness.finish(lasting_harness.start(plain, id="lasting")).output == 2


def test_that_kills_by_itself(durable_harness: Harness) -> None:
    run = durable_harness.start(plain)
    with durable_harness.crash_at(1), pytest.raises(SimulatedCrash):
        durable_harness.run(run)
    assert durable_harness.finish(run).output == 2
    durable_harness.crash_everywhere(plain)


@workflow(name="dying.parent")
def parent(ctx: Context) -> Any:
    joined = ctx.join("join", {"a": lambda c: c.step("a", lambda: 1), "b": lambda c: c.step("b", lambda: 2)})
    ctx.child("child", plain)
    ctx.step("inside", lambda: plain.using(id="inside").start().result(timeout=1))
    ctx.sleep("wait", "1 day")
    return joined


def test_branches_children_and_runs_within_steps(durable_harness: Harness) -> None:
    assert durable_harness.finish(durable_harness.start(parent)).output == {"a": 1, "b": 2}


def test_that_leaves_a_thread(durable_harness: Harness) -> None:
    done = threading.Event()

    def late() -> None:
        done.wait(60)
        send_mail("Late", "", "a@example.org", ["b@example.org"])

    thread = threading.Thread(target=late, daemon=True)
    thread.start()
    assert durable_harness.finish(durable_harness.start(plain)).output == 2
    done.set()
    thread.join()


def test_many_commits(durable_harness: Harness) -> None:
    assert durable_harness.finish(durable_harness.start(plain, 500)).output == 500


def test_slow(durable_harness: Harness) -> None:
    time.sleep(0.3)
    assert durable_harness.finish(durable_harness.start(plain)).output == 2


def test_that_counts_calls(durable_harness: Harness) -> None:
    calls: list[int] = []

    @workflow(name="dying.counted")
    def counted(ctx: Context) -> None:
        ctx.step("append", calls.append, 1)

    assert durable_harness.finish(durable_harness.start(counted)).state == "completed"
    assert len(calls) == 1, "called once"


@pytest.mark.xfail(reason="known", strict=True)
def test_xfail(durable_harness: Harness) -> None:
    durable_harness.finish(durable_harness.start(plain))
    pytest.fail("known")


def test_skip(durable_harness: Harness) -> None:
    durable_harness.finish(durable_harness.start(plain))
    pytest.skip("not today")


@pytest.mark.no_durable_crashes(reason="it cannot be executed twice")
def test_marked(durable_harness: Harness) -> None:
    assert count("marked") == 1
    durable_harness.finish(durable_harness.start(plain))


@given(st.integers(1, 3))
def test_hypothesis(number: int) -> None:
    with Harness() as h:
        assert h.finish(h.start(plain, number)).output == number


def test_without_a_harness() -> None:
    assert count("without") == 1
