"""Commits that the event loop sends itself, and everything that may happen while one is on its way."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from pytest_django import Settings

from durable import AsyncContext, workflow
from durable.core import simple_operations
from durable.core.control_flow import LeaseLost, PassAborted
from durable.drivers import loop_threads, threads
from durable.drivers.host import SentSave
from durable.drivers.loop_commits import LoopCommits
from durable.execution.connections import CHILD_EXIT_STATUS, abandon_transactions
from durable.handles import Handle
from durable.models import Entry, RunStatus
from durable.store.postgres import libpq
from durable.store.postgres.sending import PostgresCommit, PostgresCommits
from tests.benchmarks.passing import claimed, one_pass
from tests.support.waiting import eventually

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

BEFORE = 8  # steps after which the session has the function prepared
COUNT = 12

_calls: list[int] = []
_attack: Attack | None = None


async def note(number: int) -> int:
    _calls.append(number)
    if number == BEFORE and _attack is not None:
        await _attack.begin()
    return number


@workflow(name="drivers.loop_commits")
async def counting(ctx: AsyncContext) -> list[int]:
    return [await ctx.step(f"step-{number}", note, number) for number in range(COUNT)]


@dataclass
class Attack:
    """Holds the run's row, so that the commit of one step waits in the server; strikes then, and lets it go on."""

    run_id: str
    strike: Callable[[Attack], object]
    loop: Any = None
    task: Any = None
    backend: int = 0
    errors: list[BaseException] = field(default_factory=list)
    thread: threading.Thread | None = None

    async def begin(self) -> None:
        self.loop, self.task = asyncio.get_running_loop(), asyncio.current_task()
        held = threading.Event()
        self.thread = threading.Thread(target=self._hold, args=[held])
        self.thread.start()
        assert held.wait(60)

    def _hold(self, held: threading.Event) -> None:
        try:
            with psycopg.connect(**_params) as self.holder, psycopg.connect(**_params, autocommit=True) as self.other:
                self.holder.execute("SELECT 1 FROM durable_run WHERE id = %s FOR UPDATE", [self.run_id])
                held.set()
                self.until("SELECT 1 FROM pg_stat_activity WHERE pid = %s AND wait_event_type = 'Lock'", self.backend)
                self.strike(self)
        except BaseException as error:
            self.errors.append(error)
            raise

    def until(self, query: str, *parameters: Any) -> None:
        """Wait for a row."""
        for _ in range(60_000):
            if self.other.execute(query, parameters).fetchone():
                return
            self.other.execute("SELECT pg_sleep(0.001)")
        raise AssertionError(f"no row of {query}")

    def in_loop(self, function: Callable[[], object]) -> None:
        """Call the function in the loop's thread, and wait for that."""
        called = threading.Event()
        self.loop.call_soon_threadsafe(function)
        self.loop.call_soon_threadsafe(called.set)
        assert called.wait(60)

    def entries(self) -> int:
        """How many steps are committed."""
        [(count,)] = self.other.execute("SELECT count(*) FROM durable_entry WHERE run_id = %s", [self.run_id])
        return int(count)


_params: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    global _attack
    monkeypatch.setattr(libpq, "_unnamed", set())
    monkeypatch.setattr(libpq, "_unreported", set())
    _calls.clear()
    connection.ensure_connection()
    keys = ("host", "port", "user", "password", "dbname")
    _params.update({key: value for key, value in connection.get_connection_params().items() if key in keys})
    yield
    _attack = None


_loops: list[LoopCommits] = []


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[SentSave]:
    """The saves that loops have sent."""
    saves: list[SentSave] = []
    proceed = LoopCommits._proceed
    _loops.clear()

    def noting(commits: LoopCommits) -> None:
        if (save := commits._save) is not None and save not in saves:
            saves.append(save)
            _loops.append(commits)
        proceed(commits)

    monkeypatch.setattr(LoopCommits, "_proceed", noting)
    return saves


def attacked(strike: Callable[[Attack], object], workflow: Any = counting) -> Handle[Any]:
    """Execute a pass during which `strike` is called while a commit waits."""
    global _attack
    handle: Handle[Any] = workflow.start()
    record = claimed(handle)
    _attack = Attack(handle.id, strike, backend=connection.connection.info.backend_pid)
    try:
        one_pass(record)
    finally:
        assert _attack.thread is not None
        _attack.thread.join(60)
        assert not _attack.errors
    return handle


def assert_done_once(handle: Handle[Any]) -> None:
    assert handle.output == list(range(COUNT))
    assert _calls == list(range(COUNT))
    assert Entry.objects.filter(run=handle.id).count() == COUNT


def test_steps_of_async_functions_are_committed_by_the_loop(sent: list[SentSave]) -> None:
    handle = counting.start()
    one_pass(claimed(handle))
    assert_done_once(handle)
    assert len(sent) >= COUNT - BEFORE
    assert all(save.is_plain for save in sent)


def test_the_loop_has_its_turn_when_it_learns_that_a_call_has_ended(
    sent: list[SentSave], monkeypatch: pytest.MonkeyPatch
) -> None:
    hand_over = threads._hand_over

    def slow(*args: Any) -> None:
        hand_over(*args)
        time.sleep(0.01)  # the thread has told the loop, and has not come to its next wait

    monkeypatch.setattr(threads, "_hand_over", slow)
    handle = counting.start()
    one_pass(claimed(handle))
    assert_done_once(handle)
    assert len(sent) >= COUNT - BEFORE


def test_a_loop_that_cannot_watch_one_more_socket_leaves_the_commits_to_the_thread(
    sent: list[SentSave], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        refused.append(len(_calls))
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # as beyond fs.epoll.max_user_watches

    refused: list[int] = []
    monkeypatch.setattr(asyncio.SelectorEventLoop, "add_reader", refuse)
    before = len(descriptors())
    handle = counting.start()
    one_pass(claimed(handle))
    assert_done_once(handle)
    assert len(refused) == 1
    assert not sent
    assert len(descriptors()) == before


@workflow(name="drivers.loop_commits_large")
async def large(ctx: AsyncContext) -> int:
    total = 0
    for number in range(COUNT):
        total += len(await ctx.step(f"step-{number}", much, number))
    return total


async def much(number: int) -> str:
    return "x" * (1_000_000 if number == COUNT - 2 else 1)  # more than a socket takes at once


def test_what_does_not_fit_into_the_socket_is_sent_bit_by_bit(sent: list[SentSave]) -> None:
    handle = large.start()
    one_pass(claimed(handle))
    assert handle.output == 1_000_000 + COUNT - 1
    assert len(sent) >= COUNT - BEFORE


def test_a_commit_whose_connection_is_killed_happens_once(
    sent: list[SentSave], caplog: pytest.LogCaptureFixture
) -> None:
    def kill(attack: Attack) -> None:
        attack.other.execute("SELECT pg_terminate_backend(%s)", [attack.backend])
        attack.until("SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM pg_stat_activity WHERE pid = %s)", attack.backend)

    with caplog.at_level(logging.WARNING, "durable.pass"):
        handle = attacked(kill)
    assert_done_once(handle)
    assert "a commit failed and is retried" in caplog.text
    assert not all(save.is_plain for save in sent)


def test_a_commit_that_the_server_cancels_is_repeated(sent: list[SentSave]) -> None:
    handle = attacked(lambda attack: attack.other.execute("SELECT pg_cancel_backend(%s)", [attack.backend]))
    assert_done_once(handle)
    assert not all(save.is_plain for save in sent)


HUGE = 10**5000  # Python writes it down in no JSON


@workflow(name="drivers.loop_commits_unwritable")
async def unwritable(ctx: AsyncContext) -> None:
    for number in range(BEFORE):
        await ctx.step(f"step-{number}", note, number)
    await ctx.get_version("change", latest=HUGE)
    try:
        await ctx.step("last", note, COUNT)
    except Exception as error:
        _seen.append(error)
        raise


def test_a_commit_that_cannot_be_written_down_ends_the_pass_and_does_not_reach_the_code(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(simple_operations, "check_whole", lambda _name, value, **_bounds: value)
    _seen.clear()
    handle = unwritable.start()
    with pytest.raises(PassAborted, match="4300 digits"):
        one_pass(claimed(handle))
    assert _seen == []
    assert _calls == [*range(BEFORE), COUNT]
    assert Entry.objects.filter(run=handle.id).count() == BEFORE


def test_a_commit_with_an_old_fence_writes_nothing(sent: list[SentSave]) -> None:
    def claim(attack: Attack) -> None:
        attack.holder.execute("UPDATE durable_run SET fence = fence + 1 WHERE id = %s", [attack.run_id])

    with pytest.raises(LeaseLost):
        attacked(claim)
    assert _calls == list(range(BEFORE + 1))
    assert Entry.objects.count() == BEFORE
    assert len(sent) >= 1


def test_a_request_that_comes_with_the_answer_is_obeyed(sent: list[SentSave]) -> None:
    def pause(attack: Attack) -> None:
        attack.holder.execute("UPDATE durable_run SET pending_request = 'pause' WHERE id = %s", [attack.run_id])

    handle = attacked(pause)
    assert handle.info().state == "paused"
    assert Entry.objects.filter(run=handle.id).count() == BEFORE + 1
    assert not sent[-1].is_plain


_seen: list[Any] = []


@workflow(name="drivers.loop_commits_cancelled")
async def cancelled(ctx: AsyncContext) -> str:
    for number in range(BEFORE):
        await ctx.step(f"step-{number}", note, number)
    try:
        await ctx.step("last", note, BEFORE)
    except asyncio.CancelledError:
        assert _attack is not None
        assert _attack.task is asyncio.current_task()
        _seen.append("cancelled")
        raise
    return "not cancelled"


def test_a_task_that_is_cancelled_meanwhile_is_cancelled_when_the_commit_has_ended(sent: list[SentSave]) -> None:
    _seen.clear()

    def cancel(attack: Attack) -> None:
        attack.in_loop(attack.task.cancel)
        attack.in_loop(lambda: _seen.append("waits"))
        attack.in_loop(lambda: None)
        _seen.append(attack.entries())

    with pytest.raises(asyncio.CancelledError):
        attacked(cancel, cancelled)
    assert _seen == ["waits", BEFORE, "cancelled"]
    assert Entry.objects.count() == BEFORE + 1
    assert sent


def test_other_code_gets_the_connection_when_the_commit_has_ended(
    sent: list[SentSave], caplog: pytest.LogCaptureFixture
) -> None:
    closed: list[Any] = []

    def close() -> None:
        closed.append(Entry.objects.count())
        connection.close()

    def ask(attack: Attack) -> None:
        attack.in_loop(lambda: closed.append(attack.loop.create_task(sync_to_async(close)())))
        attack.in_loop(lambda: None)

    with caplog.at_level(logging.WARNING, "durable.pass"):
        handle = attacked(ask)
    assert_done_once(handle)
    assert closed[1] == BEFORE + 1
    assert "retried" not in caplog.text


def test_a_connection_that_is_closed_nevertheless_is_noticed(
    sent: list[SentSave], caplog: pytest.LogCaptureFixture
) -> None:
    raw = connection.connection
    with caplog.at_level(logging.WARNING, "durable.pass"):
        handle = attacked(lambda attack: attack.in_loop(raw.close))
    assert_done_once(handle)
    assert "a commit failed and is retried" in caplog.text


class Interruption(BaseException):
    """What a signal handler raises."""


def test_an_interruption_of_the_thread_waits_for_the_commit(sent: list[SentSave]) -> None:
    def interrupt(_signum: int, _frame: FrameType | None) -> None:
        interrupted.set()
        raise Interruption

    def strike(_attack: Attack) -> None:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
        assert interrupted.wait(60)
        eventually(lambda: _loops[-1]._is_over)  # the thread waits for the commit

    interrupted = threading.Event()
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        # as a worker does: of asgiref's own loop the thread would wait for ever, and the process for the thread
        with loop_threads.keep(), pytest.raises(Interruption):
            attacked(strike)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert Entry.objects.count() == BEFORE + 1


def test_a_forked_child_that_comes_back_to_the_loop_takes_no_answer(sent: list[SentSave]) -> None:
    children: list[int] = []

    def fork() -> None:
        if child := os.fork():
            children.append(child)

    handle = attacked(lambda attack: attack.in_loop(fork))
    assert_done_once(handle)
    [child] = children
    os.kill(child, signal.SIGKILL)  # it waits for ever if its parent was told first that there is an answer
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (CHILD_EXIT_STATUS, -signal.SIGKILL)


@workflow(name="drivers.loop_commits_forgotten")
async def forgotten(ctx: AsyncContext) -> list[int]:
    found = [await ctx.step(f"step-{number}", note, number) for number in range(BEFORE)]
    await sync_to_async(lambda: connection.connection.pgconn.exec_(b"DEALLOCATE ALL"))()
    return [*found, *[await ctx.step(f"step-{number}", note, number) for number in range(BEFORE, COUNT)]]


def test_a_statement_that_the_session_has_forgotten_is_sent_whole(sent: list[SentSave]) -> None:
    handle = forgotten.start()
    one_pass(claimed(handle))
    assert_done_once(handle)
    assert not sent[-1].is_plain
    assert libpq._unnamed == {connection.alias}


@workflow(name="drivers.loop_commits_forgotten_within")
async def forgotten_within(ctx: AsyncContext) -> None:
    for number in range(BEFORE):
        await ctx.step(f"step-{number}", note, number)
    await sync_to_async(lambda: connection.connection.pgconn.exec_(b"DEALLOCATE ALL"))()
    opening: list[asyncio.Task[None]] = []

    async def last() -> None:
        opening.append(asyncio.create_task(sync_to_async(transaction.atomic().__enter__)()))

    await ctx.step("last", last)
    _seen.append("went on")


def test_a_statement_that_was_forgotten_is_not_repeated_in_a_transaction_of_other_code(sent: list[SentSave]) -> None:
    _seen.clear()
    handle = forgotten_within.start()
    with pytest.raises(PassAborted):
        one_pass(claimed(handle))
    assert connection.in_atomic_block
    abandon_transactions()  # as the worker does after each pass
    assert _seen == []
    assert Entry.objects.filter(run=handle.id).count() == BEFORE
    assert not sent[-1].is_plain


async def _all_steps(ctx: AsyncContext) -> list[int]:
    return [await ctx.step(f"step-{number}", note, number) for number in range(COUNT)]


@workflow(name="drivers.loop_commits_elsewhere")
async def elsewhere(ctx: AsyncContext) -> list[int]:
    return await asyncio.to_thread(asyncio.run, _all_steps(ctx))


def test_steps_on_a_loop_of_the_codes_own_are_committed_by_the_thread(sent: list[SentSave]) -> None:
    handle = elsewhere.start()
    one_pass(claimed(handle))
    assert_done_once(handle)
    assert not sent


def note_plainly(number: int) -> int:
    _calls.append(number)
    return number


@workflow(name="drivers.loop_commits_branches_elsewhere")
async def branches_elsewhere(ctx: AsyncContext, *, is_plain: bool) -> dict[str, list[int]]:
    async def steps(branch: AsyncContext) -> list[int]:
        function: Any = note_plainly if is_plain else note
        return [await branch.step(f"step-{number}", function, number) for number in range(COUNT)]

    async def body(branch: AsyncContext) -> list[int]:
        return await asyncio.to_thread(asyncio.run, steps(branch))

    return await ctx.join("all", dict.fromkeys("abcd", body))


@pytest.mark.parametrize("is_plain", [True, False], ids=["plain", "async"])
def test_branches_on_loops_of_the_codes_own_do_not_wait_for_each_other(settings: Settings, *, is_plain: bool) -> None:
    settings.DURABLE = {**settings.DURABLE, "MAX_BRANCH_THREADS": 2}
    handle = branches_elsewhere.start(is_plain=is_plain)
    one_pass(claimed(handle))
    assert handle.output == {name: list(range(COUNT)) for name in "abcd"}
    assert sorted(_calls) == sorted([*range(COUNT)] * 4)


def disconnect() -> None:
    connection.close()


@workflow(name="drivers.loop_commits_reconnecting")
async def reconnecting(ctx: AsyncContext) -> list[int]:
    found = []
    for number in range(COUNT):
        await ctx.step(f"disconnect-{number}", disconnect)  # as code does that closes old connections
        found.append(await ctx.step(f"count-{number}", count_descriptors))
    return found


async def count_descriptors() -> int:
    return len(descriptors())


def descriptors() -> list[Path]:
    return list(Path("/proc/self/fd").iterdir())


def test_no_descriptor_is_left_of_sessions_that_the_code_has_closed(
    sent: list[SentSave], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(libpq, "_USES", 1)  # otherwise each session would have to last for more steps
    handle = reconnecting.start()
    one_pass(claimed(handle))
    assert len(sent) >= BEFORE
    assert handle.output is not None
    first, *others = handle.output[1:]
    assert max(others) <= first + 1


@workflow(name="drivers.loop_commits_status")
async def telling(ctx: AsyncContext) -> list[int]:
    _contexts[:] = [ctx]
    return await _all_steps(ctx)


_contexts: list[AsyncContext] = []


def test_a_status_that_another_thread_sets_before_a_commit_is_sent_is_not_lost(
    sent: list[SentSave], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_ = PostgresCommits.open

    def opening(commits: PostgresCommits) -> PostgresCommit | None:
        opened = open_(commits)
        if len(_calls) == BEFORE + 1:
            assert opened is not None
            thread = threading.Thread(target=_contexts[0].status, args=["late"])
            thread.start()
            thread.join(60)
        return opened

    monkeypatch.setattr(PostgresCommits, "open", opening)
    handle = telling.start()
    one_pass(claimed(handle))
    assert_done_once(handle)
    assert [each.text for each in RunStatus.objects.filter(run=handle.id)] == ["late"]
    assert sent


def test_a_session_without_prepared_statements_is_not_made_ready_for_the_loop(
    sent: list[SentSave], monkeypatch: pytest.MonkeyPatch
) -> None:
    watched: list[int | None] = []
    monkeypatch.setattr(LoopCommits, "_watch", lambda _commits, socket: watched.append(socket))
    monkeypatch.setattr(libpq, "_unnamed", {connection.alias})  # as behind a pooler in transaction mode
    handle = counting.start()
    one_pass(claimed(handle))
    assert_done_once(handle)
    assert set(watched) == {None}
    assert not sent
