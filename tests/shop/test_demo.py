"""The demo, as a stranger runs it: one command, its own servers, workers that are killed, and nothing left behind."""

import os
import re
import select
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.support.child_path import child_path

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def environment() -> dict[str, str]:
    """That of a fresh terminal: the servers of this session are not the demo's."""
    others = {name: value for name, value in os.environ.items() if name not in {"DATABASE_URL", "REDIS_URL"}}
    return {**others, "PYTHONPATH": child_path()}


@contextmanager
def demo(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), "demo", *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(300)
        assert process.stdout is not None
        process.stdout.close()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    parent = psutil.Process(process.pid)
    return [parent, *parent.children(recursive=True)]


def read_until(process: subprocess.Popen[str], sign: str, seconds: float = 300) -> str:
    """What the process wrote, up to and with the line that has `sign`."""
    assert process.stdout is not None
    output = process.stdout.fileno()  # read without a buffer, in which select would not see what lies there
    deadline = time.monotonic() + seconds
    text = ""
    while sign not in text:
        ready, _, _ = select.select([output], [], [], max(0, deadline - time.monotonic()))
        chunk = os.read(output, 65536) if ready else b""
        assert chunk, f"{sign!r} did not come; the demo wrote:\n{text}"
        text += chunk.decode(errors="replace")
    return text


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=90)
    assert alive == []


def test_once_all_promises_hold() -> None:
    with demo("--once") as process:
        output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    assert "SIGKILL for worker process" in output
    assert "Redis flushed" in output
    assert "a customer's syncs went one after the other (3 of 3 completed)" in output
    assert "every card was charged exactly once (12 charges for 12 orders)" in output
    assert "the others not (1 refunded of 1 rejected)" in output
    assert re.search(r"order-\d+ completed", output)
    assert "one shipment, a child that has completed (11 shipments)" in output
    assert "one cart, which is one order of three lines (1 cart, " in output
    assert re.search(r"the report of the day has every order that was sent \(orders 12, sent 11, refunded 1", output)
    assert "All held." in output


def test_then_it_serves_until_it_is_interrupted(tmp_path: Path) -> None:
    with demo("--orders", "2", "--port", "8765", "--directory", str(tmp_path)) as process:
        output = read_until(process, "Ctrl-C ends it all.")
        address = re.search(r"The shop: +(http://127\.0\.0\.1:\d+)/", output)
        assert address is not None
        assert re.search(r"user demo, password \S+", output)
        with urllib.request.urlopen(f"{address[1]}/", timeout=60) as answer:
            assert b"Provisions for cats" in answer.read()
        with urllib.request.urlopen(f"{address[1]}/static/shop/live.js", timeout=60) as answer:
            assert answer.status == 200
        for name in ("Children", "Schedules", "Keys", "Transfer", "Refund", "The inbox", "Branches"):
            page = re.search(rf"{name}: +(http\S+) ", output)
            assert page is not None
            with urllib.request.urlopen(page[1], timeout=60) as answer:  # the admin answers with its login
                assert answer.status == 200
        processes = family(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    assert_gone(processes)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_stopped_in_the_middle_leaves_nothing_behind(
    how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SERVICE_LATENCY", "1")  # so that the middle is long
    with demo("--once") as process:
        read_until(process, "worker processes start")
        processes = family(process)
        directories = {each.environ().get("DURABLE_DEMO_DIRECTORY") for each in processes} - {None}
        process.send_signal(how)
        assert process.wait(120) != 0
        assert_gone(processes)
        assert [Path(str(path)).exists() for path in directories] == [False]
