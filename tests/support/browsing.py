"""What tests in a real browser share: the worker behind the pages, and what the browser complains about."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def working(environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Inside, a worker process serves the database and Redis of the environment, and writes to `log`."""
    command = [sys.executable, str(ROOT / "manage.py"), "durable_worker"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
        yield process
        process.terminate()
        process.wait(120)


def complaints_of(page: Page) -> list[str]:
    """What the browser will complain about on the page: errors, warnings, and what the policy forbids among them."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    return found
