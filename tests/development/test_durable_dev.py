"""`manage.py durable_dev` as a process: a web server and a worker, with the code of now, and nothing left behind."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from durable import get_run
from durable.store import Store
from tests.development.conftest import Manage, Run, Start, run_command
from tests.development.project import WORKFLOWS, Project
from tests.support import http
from tests.support.processes import is_completed
from tests.support.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.fixture
def port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


Dev = Callable[..., Manage]


@pytest.fixture
def dev(manage: Run, port: int) -> Iterator[Dev]:
    """Start durable_dev; at the end none of what it has started may be left."""
    started: list[Manage] = []

    def start(*arguments: str, at: int = port, **extra: str) -> Manage:
        program = manage("durable_dev", str(at), *arguments, **extra)
        started.append(program)
        return program

    yield start
    for each in started:
        if each.process.poll() is None:
            each.family()
            assert each.end() == 0
        eventually(lambda each=each: each.family() == [])  # type: ignore[misc]


def ask(port: int, path: str) -> str:
    """What the web server answers, once it serves."""
    answers: list[str] = []

    def is_answered() -> bool:
        try:
            answers.append(http.get(f"http://127.0.0.1:{port}{path}").raise_for_status().text)
        except httpx.TransportError:
            return False
        return True

    eventually(is_answered)
    return answers[-1]


def worker_of(program: Manage) -> int:
    """The process id of the worker that was started last."""
    return program.pids()[-1]


class TestTogether:
    def test_a_request_starts_a_run_and_its_steps_are_printed(self, dev: Dev, port: int, store: Store) -> None:
        program = dev()
        assert ask(port, "/place/order-1") == "pending"
        [line] = program.wait_for("shop.one order-1: ")
        assert line.endswith("completed")
        assert program.wait_for("without Redis")
        family = program.family()
        assert len(family) >= 4  # the worker, the guard, and the two of runserver
        assert program.end(signal.SIGINT) == 0
        eventually(lambda: program.family() == [])
        with socket.create_server(("127.0.0.1", port)):
            pass  # nobody serves there any more

    def test_where_no_terminal_reads_it_each_line_is_there_at_once(self, dev: Dev, port: int) -> None:
        program = dev(PYTHONUNBUFFERED="")  # as for most users
        assert ask(port, "/place/order-1") == "pending"
        program.wait_for("Starting development server")
        program.wait_for("placing order-1")

    def test_a_parent_that_is_killed_takes_all_with_it(self, dev: Dev, port: int) -> None:
        program = dev()
        program.wait_for("worker ready")
        program.wait_for("Starting development server")
        assert len(program.family()) >= 4
        program.process.kill()
        program.wait()
        eventually(lambda: program.family() == [])

    def test_sigterm_hands_over(self, dev: Dev, start: Start, site: Project, store: Store) -> None:
        program = dev("--concurrency", "2")
        start("shop.held", "a")
        eventually(lambda: site.calls() == ["a begins"])
        program.family()
        program.process.send_signal(signal.SIGTERM)
        program.wait_for("handing over")
        site.let("a")
        assert program.wait() == 0
        run = store.get("a")
        assert run is not None
        assert (run.lease_expires_at, run.crashes) == (None, 0)

    def test_a_port_in_use_ends_both(self, dev: Dev, port: int) -> None:
        with socket.create_server(("127.0.0.1", port)):
            program = dev()
            assert program.wait() == 1
        program.wait_for("port is already in use")
        program.wait_for("the web server has ended, status 1")

    def test_a_worker_that_is_killed_is_replaced(self, dev: Dev, start: Start, site: Project, store: Store) -> None:
        program = dev()
        start("shop.held", "a")
        eventually(lambda: site.calls() == ["a begins"])
        [pid] = set(site.pids())
        os.kill(pid, signal.SIGKILL)
        program.wait_for(f"died, pid {pid}, signal 9")
        site.let("a")
        eventually(lambda: is_completed(store, "a"))

    def test_two_at_once_do_each_run_once(self, dev: Dev, port: int, start: Start, site: Project, store: Store) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            other = server.getsockname()[1]
        for program in (dev(), dev(at=other)):
            program.wait_for("worker ready")
        ids = [start("shop.one", f"a{number}") for number in range(20)]
        ids += [f"b{number}" for number in range(4)]
        for number in range(4):
            ask((port, other)[number % 2], f"/place/b{number}")
        eventually(lambda: is_completed(store, *ids))
        assert sorted(site.calls()) == sorted(ids)

    def test_a_redis_that_is_away_is_named_with_the_way_out(self, dev: Dev) -> None:
        program = dev(WITH_REDIS="1")
        [line] = program.wait_for("Redis does not answer")
        assert 'DURABLE = {"REDIS": False}' in line
        program.wait_for("worker ready")

    def test_missing_migrations_are_awaited_while_the_web_server_runs(
        self, dev: Dev, port: int, tmp_path: Path
    ) -> None:
        program = dev(DATABASE_URL=f"sqlite:///{tmp_path}/empty.sqlite3")
        program.wait_for("migrations are missing")
        program.wait_for("Starting development server")
        program.family()
        program.process.send_signal(signal.SIGINT)
        assert program.wait() == 0

    def test_a_wrong_option_is_refused(self) -> None:
        with (
            override_settings(DURABLE={"REDIS": False}),
            pytest.raises(CommandError, match="--concurrency must be at least 1"),
        ):
            call_command("durable_dev", concurrency=0)


class TestReload:
    def test_new_code_is_run(self, dev: Dev, start: Start, site: Project, store: Store) -> None:
        program = dev()
        first = worker_of(program)
        program.wait_for("worker ready")
        start("shop.nap", "sleeper", 4)
        eventually(lambda: "sleeper sleeps" in site.calls())
        site.write(
            "shop/workflows.py", WORKFLOWS.replace('"tell", steps.tell, name', '"say", steps.tell, f"new {name}"')
        )
        program.wait_for("shop/workflows.py changed: starting the workers again")
        assert program.pids(2)[-1] != first
        start("shop.one", "a")
        eventually(lambda: is_completed(store, "a", "sleeper"))  # which was due while the worker was started again
        assert "new a" in site.calls()
        assert "sleeper woke up" in site.calls()
        eventually(lambda: not psutil.pid_exists(first))

    def test_a_step_under_way_ends_with_the_code_that_it_began_with(
        self, dev: Dev, start: Start, site: Project, store: Store
    ) -> None:
        program = dev()
        start("shop.held", "a")
        eventually(lambda: site.calls() == ["a begins"])
        site.write("shop/steps.py", (site.directory / "shop/steps.py").read_text() + "\n# changed\n")
        program.pids(2)
        start("shop.one", "b")
        eventually(lambda: is_completed(store, "b"))  # while the other worker is still in its step
        site.let("a")
        eventually(lambda: is_completed(store, "a"))
        run = store.get("a")
        assert run is not None
        assert run.crashes == 0
        assert site.calls() == ["a begins", "b", "a done"]

    def test_code_that_cannot_be_read_is_waited_for(self, dev: Dev, start: Start, site: Project, store: Store) -> None:
        program = dev()
        program.wait_for("worker ready")
        site.write("shop/workflows.py", WORKFLOWS + "\ndef broken(:\n")
        program.wait_for("SyntaxError")
        program.wait_for("cannot start, status 1; it is tried again when the code changes")
        start("shop.one", "a")
        site.write("shop/workflows.py", WORKFLOWS + "\nfrom shop import later\n")
        program.wait_for("cannot import name 'later'")
        program.wait_for("cannot start", 2)
        site.write("shop/later.py", "")  # a file that nobody has imported yet
        eventually(lambda: is_completed(store, "a"))
        assert get_run("a").output == "a"


class TestWorkersReload:
    def test_durable_worker_reloads_with_its_option(
        self, manage: Run, start: Start, site: Project, store: Store
    ) -> None:
        program = manage("durable_worker", "--reload", "--processes", "2")
        program.wait_for("worker ready", 2)
        site.write(
            "shop/workflows.py", WORKFLOWS.replace('"tell", steps.tell, name', '"say", steps.tell, f"new {name}"')
        )
        program.wait_for("worker ready", 4)
        start("shop.one", "a")
        eventually(lambda: site.calls() == ["new a"])
        assert program.end() == 0


def test_fifty_runs_and_requests_that_write_share_a_sqlite_file(
    dev: Dev, port: int, site: Project, environment: dict[str, str], tmp_path: Path
) -> None:
    """Each process waits for its turn to write: none gets the error that the database is locked."""
    own = {"DATABASE_URL": f"sqlite:///{tmp_path}/load.sqlite3"}
    run_command(site, {**environment, **own}, "migrate", "--verbosity=0")
    program = dev("--concurrency", "2", **own)
    ids = [f"run-{number}" for number in range(50)]
    answers: list[str] = []
    ask(port, "/place/first")

    def place(some: list[str]) -> None:
        answers.extend(ask(port, f"/place/{each}") for each in some)

    threads = [threading.Thread(target=place, args=(ids[number::2],)) for number in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    eventually(lambda: sorted(site.calls()) == sorted([*ids, "first"]))
    program.wait_for("completed", 51)
    assert len(answers) == 50
    assert not [line for line in program.lines if "locked" in line]
