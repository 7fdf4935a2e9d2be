"""Names in records that somebody else has written: what the replay check imports for them, and what a worker does."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction

from durable import AsyncContext, Context, CriticalError, RollbackContext
from durable.models import Entry, Run
from durable.replay_check.findings import FindingKind
from tests.cli.conftest import Shell, shell, stage
from tests.replay_check.conftest import Deploys, deploys

__all__ = ["deploys", "shell", "stage"]

RAN = "hostile_names_ran"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Modules that note that they run; the function returns which have run."""
    note = f"import sys\nsys.modules.setdefault({RAN!r}, []).append(__name__)\n"
    handler = "def undo(rollback, output):\n    sys.modules[__name__].undone = output\n"
    error = "from durable import CriticalError\nclass DeclinedError(CriticalError):\n    pass\n"
    for package in ("hostile_unused", "hostile_used"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(note)
        (tmp_path / package / "refunds.py").write_text(note + handler + error)
        (tmp_path / package / "prices.py").write_text(
            f"{note}from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Price:\n    cents: int\n"
        )
        (tmp_path / package / "script.py").write_text(note + "wipe = 1\n")
        (tmp_path / package / "lazy.py").write_text(
            "import sys\ndef __getattr__(name):\n"
            f"    sys.modules.setdefault({RAN!r}, []).append(name)\n    return print\n"
        )
        (tmp_path / package / "__main__.py").write_text(note + handler)
    monkeypatch.syspath_prepend(tmp_path)
    __import__("hostile_used")
    sys.modules.pop(RAN)

    yield lambda: list(sys.modules.get(RAN, ()))

    for name in [name for name in sys.modules if name.startswith("hostile_")]:
        del sys.modules[name]


def undo(rollback: RollbackContext, output: str) -> None:
    """Undo nothing: the tests record other names."""


def decline() -> str:
    raise CriticalError("declined")


def guarded(ctx: Context) -> None:
    ctx.rollback_checkpoint("begin")
    ctx.step("charge", str, rollback=undo)
    try:
        ctx.step("ship", decline)
    except CriticalError:
        ctx.sleep("wait", "1 day")


@dataclass(frozen=True)
class Price:
    cents: int


def price() -> Price:
    return Price(cents=100)


def priced(ctx: Context) -> None:
    assert ctx.step("price", price).cents == 100
    ctx.sleep("wait", "1 day")


def priced_in_branches(ctx: Context) -> None:
    found = ctx.join("both", {"one": lambda c: c.step("price", price), "two": lambda c: c.step("other", str)})
    assert found["one"].cents == 100
    ctx.sleep("wait", "1 day")


async def priced_in_a_task(ctx: AsyncContext) -> None:
    async def one(c: AsyncContext) -> Price:
        return await c.step("price", price)

    found = await ctx.join("both", {"one": one})
    assert found["one"].cents == 100
    await ctx.sleep("wait", "1 day")


def forge(location: str, **data: Any) -> None:
    """Change what the entry's data has of a name."""
    entry: Any = Entry.objects.get(location=location)
    changed = {name: {**entry.data[name], **each} for name, each in data.items()}
    Entry.objects.filter(pk=entry.pk).update(data={**entry.data, **changed})


NOT_THERE = [
    "hostile_unused.script:undo",
    "hostile_unused.missing:undo",
    "hostile_unused.__main__:undo",
    "hostile_used.script:undo",
    "hostile_used.__main__:undo",
    "hostile_missing:undo",
    "hostile_used:sys.exit",
    "..:undo",
    "",
    "hostile_unused.script",
]


@pytest.mark.parametrize("name", NOT_THERE)
def test_a_handler_that_no_source_defines_is_reported_and_not_imported(
    deploys: Deploys, ran: Callable[[], list[str]], name: str
) -> None:
    deploys.begin(guarded)
    assert deploys.goes_on()
    forge("charge", rollback={"handler": name})
    found = deploys.finding()
    assert (found.kind, found.location) == (FindingKind.HANDLER, "charge")
    assert ran() == []


@pytest.mark.parametrize("package", ["hostile_unused", "hostile_used"])
def test_a_handler_is_found_in_the_source_of_its_package(
    deploys: Deploys, ran: Callable[[], list[str]], package: str
) -> None:
    deploys.begin(guarded)
    forge("charge", rollback={"handler": f"{package}.refunds:undo"})
    assert deploys.goes_on()
    assert ran() == []


def test_a_look_at_a_name_runs_no_code_of_a_module(deploys: Deploys, ran: Callable[[], list[str]]) -> None:
    deploys.begin(guarded)
    __import__("hostile_used.lazy")
    forge("charge", rollback={"handler": "hostile_used.lazy:undo"})
    assert deploys.finding().kind == FindingKind.HANDLER
    assert ran() == []


@pytest.mark.parametrize(
    "name", ["hostile_unused.refunds:DeclinedError", "hostile_used.script:DeclinedError", *NOT_THERE]
)
def test_an_error_class_of_a_record_imports_nothing(deploys: Deploys, ran: Callable[[], list[str]], name: str) -> None:
    deploys.begin(guarded)
    forge("ship", failure={"class": name})
    assert deploys.goes_on()  # as a CriticalError
    assert ran() == []


def test_an_error_class_that_the_code_has_imported_is_caught_as_itself(
    deploys: Deploys, ran: Callable[[], list[str]]
) -> None:
    caught: list[str] = []

    def catching(ctx: Context) -> None:
        try:
            ctx.step("ship", decline)
        except CriticalError as error:
            caught.append(type(error).__name__)
            ctx.sleep("wait", "1 day")

    deploys.begin(catching)
    forge("ship", failure={"class": "hostile_used.refunds:DeclinedError"})
    assert deploys.goes_on()
    assert (caught[-1], ran()) == ("CriticalError", []), "no record makes the check import a module"
    __import__("hostile_used.refunds")
    assert deploys.goes_on()
    assert caught[-1] == "DeclinedError"


def test_a_file_of_histories_imports_nothing(
    deploys: Deploys, shell: Shell, ran: Callable[[], list[str]], tmp_path: Path
) -> None:
    deploys.begin(guarded)
    path = tmp_path / "h.jsonl"
    text = shell("export", "order-1", "--history").out
    assert shell_status(shell, path, text) == 0
    own, error = json.dumps(f"{__name__}:undo"), json.dumps("durable.core.errors:CriticalError")
    assert text.count(own) == text.count(error) == 1
    for package in ("hostile_unused", "hostile_used"):
        forged = text.replace(own, f'"{package}.script:undo"').replace(error, f'"{package}.refunds:DeclinedError"')
        assert shell_status(shell, path, forged) == 1
    assert ran() == []


@pytest.mark.parametrize("body", [priced, priced_in_branches, priced_in_a_task])
def test_a_class_inside_a_value_of_a_file_imports_nothing(
    deploys: Deploys, shell: Shell, ran: Callable[[], list[str]], tmp_path: Path, body: Any
) -> None:
    """A module of a package that is in use would be imported to decode a value of the database."""
    deploys.begin(body)
    path = tmp_path / "h.jsonl"
    text = shell("export", "order-1", "--history").out
    assert shell_status(shell, path, text) == 0
    assert f"{__name__}:Price" in text
    path.write_text(text.replace(f"{__name__}:Price", "hostile_used.prices:Price"), encoding="utf-8")
    done = shell("replay-check", "--from", str(path))
    assert (done.status, ran()) == (1, [])
    assert "nothing in this process has imported hostile_used.prices" in done.out


def shell_status(shell: Shell, path: Path, text: str) -> int:
    path.write_text(text, encoding="utf-8")
    return shell("replay-check", "--from", str(path)).status


def test_a_worker_imports_a_handler_that_nothing_has_imported(deploys: Deploys, ran: Callable[[], list[str]]) -> None:
    deploys.begin(guarded)
    forge("charge", rollback={"handler": "hostile_unused.refunds:undo"})
    Run.objects.filter(pk="order-1").update(
        state="rolling_back", state_after_rollback="failed", wake_at="2020-01-01 00:00Z"
    )
    with transaction.atomic():
        deploys.settle("order-1")
    assert Run.objects.get().state == "failed"
    assert sys.modules["hostile_unused.refunds"].undone == ""
