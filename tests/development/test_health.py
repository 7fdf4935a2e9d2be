"""`durable_worker --health-port`: what the probes say, of real processes too; no client can block the server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from durable.worker import health
from durable.worker.health import Health, served
from project.servers import EmbeddedRedis
from tests.development.conftest import Manage, Run, run_command
from tests.development.project import Project
from tests.support import http
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


def a_supervisor(**given: Any) -> Any:
    """What a parent knows that is well, but for what is given."""
    now = time.monotonic()
    well = {"ticked_at": now, "had_worker_at": now, "database_answered_at": now, "ready_workers": 2}
    return SimpleNamespace(**{**well, "children": [1, 2], "is_stopping": False, "claims_nothing": "", **given})


@pytest.fixture
def without_redis() -> Iterator[None]:
    with override_settings(DURABLE={"REDIS": False, "SWEEP_INTERVAL": 1}):
        yield


@pytest.mark.usefixtures("without_redis")
class TestReports:
    def test_all_is_well(self) -> None:
        found = Health(missing_migrations=[], supervisor=a_supervisor())
        assert found.live().status == "ok"
        assert found.ready().checks == {
            "supervisor": "ok",
            "workers": "2 of 2 ready",
            "migrations": "ok",
            "database": "ok",
            "redis": "not used",
        }
        assert found.ready().status == "ok"

    @pytest.mark.parametrize(
        ("given", "check"),
        [
            ({"ticked_at": time.monotonic() - 1000}, "supervisor"),
            ({"had_worker_at": time.monotonic() - 1000}, "workers"),
        ],
    )
    def test_a_parent_that_is_stuck_is_not_alive(self, given: dict[str, Any], check: str) -> None:
        found = Health(missing_migrations=[], supervisor=a_supervisor(**given))
        assert found.live().failed == {check}
        assert check in found.ready().failed

    @pytest.mark.parametrize(
        ("given", "missing", "check"),
        [
            ({"database_answered_at": time.monotonic() - 1000}, [], "database"),
            ({"database_answered_at": None}, [], "database"),
            ({"ready_workers": 0}, [], "workers"),
            ({"is_stopping": True}, [], "supervisor"),
            ({"claims_nothing": "it went back in time"}, [], "database"),
            ({}, ["durable.0001_tables"], "migrations"),
            ({}, None, "migrations"),
        ],
    )
    def test_what_is_not_ready_is_alive_nevertheless(
        self, given: dict[str, Any], missing: list[str] | None, check: str
    ) -> None:
        found = Health(missing_migrations=missing, supervisor=a_supervisor(**given))
        assert found.live().status == "ok"
        assert found.ready().failed == {check}

    def test_before_there_are_workers(self) -> None:
        assert Health().live().status == "ok"
        assert Health().ready().status == "failed"


class TestRedis:
    def test_without_an_answer_it_is_degraded_and_ready(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[int] = []

        def problem() -> str:
            asked.append(1)
            return "does not answer"

        monkeypatch.setattr(health, "_problem_of_redis", problem)
        found = Health(missing_migrations=[], supervisor=a_supervisor())
        reports = [found.ready() for _ in range(20)]
        assert {each.status for each in reports} == {"degraded"}
        assert not reports[0].failed
        assert len(asked) == 1  # however many ask


@pytest.fixture
def server() -> Iterator[tuple[Health, int]]:
    found = Health(missing_migrations=[], supervisor=a_supervisor())
    with override_settings(DURABLE={"REDIS": False}), served(found, 0, "127.0.0.1") as port:
        yield found, port


class TestServer:
    def test_plain_and_json(self, server: tuple[Health, int]) -> None:
        _, port = server
        plain = http.get(f"http://127.0.0.1:{port}/livez")
        assert (plain.status_code, plain.text) == (200, "ok\nsupervisor: ok\nworkers: 2 of 2 ready\n")
        for answer in (
            http.get(f"http://127.0.0.1:{port}/readyz?format=json"),
            http.get(f"http://127.0.0.1:{port}/readyz", headers={"Accept": "application/json"}),
        ):
            assert answer.json()["checks"]["database"] == "ok"
        head = http.head(f"http://127.0.0.1:{port}/livez")
        assert (head.status_code, head.text) == (200, "")
        assert "Python" not in head.headers["Server"]

    def test_what_is_not_ready_answers_503(self, server: tuple[Health, int]) -> None:
        found, port = server
        found.supervisor = a_supervisor(ready_workers=0)
        answer = http.get(f"http://127.0.0.1:{port}/readyz")
        assert (answer.status_code, answer.text.splitlines()[0]) == (503, "failed")
        assert http.get(f"http://127.0.0.1:{port}/livez").status_code == 200

    @pytest.mark.parametrize(
        ("method", "path", "status"), [("GET", "/", 404), ("GET", "/livez/x", 404), ("POST", "/livez", 501)]
    )
    def test_there_is_nothing_else(self, server: tuple[Health, int], method: str, path: str, status: int) -> None:
        assert http.request(method, f"http://127.0.0.1:{server[1]}{path}").status_code == status

    @pytest.mark.parametrize(
        "sent", [b"GET /livez", b"", b"x" * 10_000, b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n\r\n", b"\0\r\n\r\n"]
    )
    def test_what_is_no_request_holds_up_no_probe(self, server: tuple[Health, int], sent: bytes) -> None:
        with socket.create_connection(("127.0.0.1", server[1])) as client:
            client.sendall(sent)
            client.settimeout(60)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while part := client.recv(65_536):
                    answer += part
        assert b" 200 " not in answer
        assert http.get(f"http://127.0.0.1:{server[1]}/livez").status_code == 200

    def test_connections_are_bounded_and_free_again(self, server: tuple[Health, int]) -> None:
        """Idle ones are closed at the deadline, those that are too many at once."""
        idle = [socket.create_connection(("127.0.0.1", server[1])) for _ in range(health.MOST * 2)]

        def is_answered() -> bool:
            try:
                return http.get(f"http://127.0.0.1:{server[1]}/livez").status_code == 200
            except httpx.TransportError:
                return False

        eventually(is_answered)
        for each in idle:
            each.settimeout(60)
            with each, contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""

    def test_connections_that_say_nothing_keep_no_probe_away(
        self, server: tuple[Health, int], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The oldest of them goes, whatever the time that they may take."""
        monkeypatch.setattr(health, "DEADLINE", 300.0)
        idle = [socket.create_connection(("127.0.0.1", server[1])) for _ in range(health.MOST)]
        for each in idle:
            each.sendall(b"GET /livez HTTP/1.1\r\n")
        for number in range(3):
            assert status(f"http://127.0.0.1:{server[1]}/livez") == 200
            idle[number].settimeout(60)
            with contextlib.suppress(ConnectionResetError):
                assert idle[number].recv(1) == b""
            idle.append(socket.create_connection(("127.0.0.1", server[1])))
        for each in idle:
            each.close()


def probes_of(program: Manage) -> str:
    found = re.search(r"http://\S+(?=/livez)", program.wait_for("probes at")[0])
    assert found is not None
    return found.group()


def status(url: str) -> int:
    return http.get(url).status_code


@pytest.mark.django_db(transaction=True)
class TestProcesses:
    def test_a_worker_becomes_ready_and_survives_its_children(self, manage: Run, site: Project) -> None:
        program = manage("durable_worker", "--health-port", "0", "--processes", "2")
        at = probes_of(program)
        eventually(lambda: status(f"{at}/readyz") == 200)
        eventually(lambda: "workers: 2 of 2 ready" in http.get(f"{at}/readyz").text)
        first, _ = program.pids(2)
        os.kill(first, signal.SIGKILL)
        program.wait_for(f"died, pid {first}")
        assert status(f"{at}/livez") == 200
        eventually(lambda: "workers: 2 of 2 ready" in http.get(f"{at}/readyz").text)
        assert program.end() == 0
        with pytest.raises(httpx.TransportError):
            status(f"{at}/livez")

    def test_it_is_alive_and_not_ready_before_the_migrations(
        self, manage: Run, site: Project, environment: dict[str, str], tmp_path: Path
    ) -> None:
        own = {"DATABASE_URL": f"sqlite:///{tmp_path}/empty.sqlite3"}
        program = manage("durable_worker", "--health-port", "0", **own)
        at = probes_of(program)
        program.wait_for("migrations are missing")
        assert status(f"{at}/livez") == 200
        answer = http.get(f"{at}/readyz", headers={"Accept": "application/json"})
        assert answer.status_code == 503
        assert "durable.0001_tables" in json.loads(answer.text)["checks"]["migrations"]
        run_command(site, {**environment, **own}, "migrate", "--verbosity=0")
        eventually(lambda: status(f"{at}/readyz") == 200)

    def test_a_redis_that_is_away_degrades_it(self, manage: Run, site: Project) -> None:
        with EmbeddedRedis() as own:
            program = manage("durable_worker", "--health-port", "0", WITH_REDIS="1", REDIS_URL=own.url)
            at = probes_of(program)
            eventually(lambda: "redis: ok" in http.get(f"{at}/readyz").text)
            own.stop("kill")
            eventually(lambda: http.get(f"{at}/readyz").text.startswith("degraded"))
            assert status(f"{at}/readyz") == 200
            assert status(f"{at}/livez") == 200

    def test_it_is_not_open_by_default(self, manage: Run) -> None:
        program = manage("durable_worker")
        program.wait_for("worker ready")
        assert not [line for line in program.lines if "probes" in line]

    def test_a_port_in_use_is_refused(self) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as other,
            override_settings(DURABLE={"REDIS": False}),
            pytest.raises(CommandError, match=r"cannot answer probes at 127\.0\.0\.1"),
        ):
            call_command("durable_worker", health_port=other.getsockname()[1])
