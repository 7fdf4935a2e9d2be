"""Histories as files: `export --history`, what `replay-check --from` makes of them, and what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import connection, reset_queries
from django.test.utils import CaptureQueriesContext, override_settings
from pydantic import BaseModel, ConfigDict

from durable import Break, Context, Continue, runtime, workflow
from durable.core import registry
from durable.crypto import FernetCodec
from durable.histories import HistoryFileError, StoredHistory, read_files
from durable.models import Entry, EntryMetadata, QueueMessage, Run
from tests.cli.conftest import Shell, Stage

pytestmark = pytest.mark.slow

NAME = "histories.order"
HOSTILE = "pay 💶 / ~1 % \ud800 é"


def test_a_line_without_an_end_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("durable.histories.records.LONGEST", 100)
    path = tmp_path / "endless.jsonl"
    path.write_text("{" + "1" * 101, encoding="utf-8")
    with pytest.raises(HistoryFileError, match="line 1: longer than 100 characters"):
        list(read_files([path]))


@dataclass(frozen=True)
class Price:
    amount: Decimal
    currency: str
    paid: bool


@dataclass(frozen=True)
class Card:
    holder: str
    number: str = field(repr=False)
    code: int = field(repr=False)


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str


def cards() -> list[Any]:
    return [Card("Ada", "number-of-ada", 4111), Extra.model_validate({"name": "Ada", "pin": "pin-of-ada"})]


@contextmanager
def deployed(function: Callable[..., Any]) -> Iterator[Any]:
    made = workflow(name=NAME)(function)
    try:
        yield made
    finally:
        registry.registry.unregister(made)


def price(_number: int) -> Price:
    return Price(Decimal("12.50"), "EUR", True)


def echo(value: str) -> str:
    return value


def turned(ctx: Context, turn: int, name: str) -> int:
    ctx.step("look", echo, name)
    return turn + 1


def order(ctx: Context, number: int, name: str) -> Price:
    found = ctx.step("price", price, number)
    ctx.loop("turns", lambda c, turn: Break(turn) if turn == 2 else Continue(turned(c, turn, name)), 0)
    ctx.join("both", {"left": lambda c: c.step("a", echo, name), "right": lambda c: c.step("b", echo, name)})
    if found.paid:
        ctx.step(HOSTILE, echo, found.currency)
    ctx.sleep("wait", "1 day")
    return found


def other(ctx: Context, number: int, name: str) -> None:
    ctx.step("cost", price, number)


@pytest.fixture
def started(stage: Stage) -> Iterator[Run]:
    with deployed(order) as made:
        run = stage.start(made, 7, "Ada Lovelace\x00\ud800", id="order-7")
        assert {each.kind for each in runtime.current().store.history(run.id)} == {"step", "loop", "join", "sleep"}
        yield run


def kept(shell: Shell, path: Path, *given: str) -> Path:
    done = shell("export", "order-7", "--history", *given)
    assert (done.status, done.err) == (0, "")
    path.write_text(done.out, encoding="utf-8")
    return path


def read(path: Path) -> StoredHistory:
    (found,) = read_files([path])
    return found


def output_of(found: StoredHistory, location: str) -> Any:
    """The output of a step in a file whose values have their own codec."""
    assert found.codec is not None
    [output] = [each.output for each in found.entries if each.location == location]
    assert output is not None
    return found.codec.decode(output)


class TestASample:
    def test_it_has_one_run_of_each_way_through_the_code_and_no_values(
        self, shell: Shell, stage: Stage, tmp_path: Path
    ) -> None:
        def ways(ctx: Context, number: int, name: str) -> None:
            ctx.step("part" if number % 3 else "whole", echo, name)
            if number % 2:
                ctx.sleep("wait", "1 day")

        with deployed(ways) as made:
            for number in range(24):
                stage.start(made, number, "Ada Lovelace", id=f"way-{number:02}")
            done = shell("export", "--sample")
            assert (done.status, done.err) == (0, "")
            assert "Ada" not in done.out
            path = tmp_path / "sample.jsonl"
            path.write_text(done.out, encoding="utf-8")
            found = {each.run.id: each.run.state for each in read_files([path])}
            # of those that sleep and those that have ended, the newest with and without "part"
            assert found == {"way-23": "sleeping", "way-21": "sleeping", "way-22": "completed", "way-18": "completed"}
            path.write_text(shell("export", "--sample", "--decrypt").out, encoding="utf-8")
            assert "Ada" in path.read_text(encoding="utf-8")
            assert shell("replay-check", "--diff", "-o", "markdown", "--from", str(path)).lines[4:] == [
                "2 open runs: all go on with this change.",
                "",
                "2 ended runs: it decides as before in all that could be compared.",
            ]
            assert shell("export", "--sample", "--workflow", "nobody.knows").out == ""

    @pytest.mark.parametrize("given", [["way-1"], ["--state", "failed"]])
    def test_it_chooses_the_runs_itself(self, shell: Shell, given: list[str]) -> None:
        done = shell("export", "--sample", *given)
        assert done.status == 2
        assert "--workflow" in done.err


class TestTheFile:
    def test_it_has_all_that_is_recorded(self, shell: Shell, started: Run, tmp_path: Path) -> None:
        store = runtime.current().store
        QueueMessage.objects.create(
            id="m1", run=started, queue="q/1", body='"Ada"', sent_at=started.created_at, order=1
        )
        found = read(kept(shell, tmp_path / "h.jsonl"))
        assert found.run == store.get("order-7")
        assert found.entries == store.history("order-7")
        assert found.messages == store.messages("order-7")
        assert found.recorded.codec is None

    def test_files_can_be_joined_and_have_several_runs(self, shell: Shell, started: Run, tmp_path: Path) -> None:
        text = kept(shell, tmp_path / "a.jsonl").read_text(encoding="utf-8")
        (tmp_path / "both.jsonl").write_text(f"{text}\n{text}", encoding="utf-8")
        assert [each.run.id for each in read_files([tmp_path / "both.jsonl"])] == ["order-7", "order-7"]

    def test_nothing_is_cut_and_the_rows_are_read_in_parts(
        self, shell: Shell, started: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("durable.inspection.export.MOST", 5_000)
        Entry.objects.filter(run=started).delete()
        entries = [
            Entry(run=started, location=f"step {n}", kind="step", ordinal=n, output=json.dumps("x" * 100))
            for n in range(6_000)  # more than the export for reading has
        ]
        rows = Entry.objects.bulk_create(entries, batch_size=5_000)
        if rows[0].pk is None:
            rows = list(Entry.objects.filter(run=started))
        EntryMetadata.objects.bulk_create(
            [EntryMetadata(entry=each, status="completed", created_at=started.created_at) for each in rows],
            batch_size=5_000,
        )
        reset_queries()
        with CaptureQueriesContext(connection) as queries:
            path = kept(shell, tmp_path / "h.jsonl")
        assert len(queries) > 6  # parts of at most 1,000 rows
        assert [each.ordinal for each in read(path).entries] == list(range(6_000))

    def test_a_run_that_is_not_there(self, shell: Shell, started: Run) -> None:
        done = shell("export", "nobody", "--history")
        assert (done.status, done.out, done.err) == (1, "", 'durable: there is no run "nobody"\n')

    @pytest.mark.parametrize("given", [("--redact",), ("--history", "--no-payloads")])
    def test_options_that_do_not_go_together(self, shell: Shell, started: Run, given: tuple[str, ...]) -> None:
        assert shell("export", "order-7", *given).status == 2


class TestTheCheck:
    def test_a_file_goes_on_with_its_own_code_and_is_checked_in_processes(
        self, shell: Shell, started: Run, tmp_path: Path
    ) -> None:
        path = kept(shell, tmp_path / "h.jsonl")
        Run.objects.all().delete()
        done = shell("replay-check", "--from", str(path))
        assert (done.status, done.out) == (0, "")
        assert done.err.endswith("1 run checked, none would diverge.\n")
        done = shell("replay-check", "--from", str(path), str(path), "--jobs", "2")
        assert done.status == 1  # the other processes lack the workflow
        assert done.err.endswith("2 runs checked, 2 would diverge.\n")
        assert "has no workflow of this name" in done.out

    def test_other_code_is_told(self, shell: Shell, stage: Stage, tmp_path: Path) -> None:
        with deployed(order) as made:
            stage.start(made, 7, "Ada", id="order-7")
            path = kept(shell, tmp_path / "h.jsonl")
        with deployed(other):
            done = shell("replay-check", "--from", str(path), "--workflow", NAME)
        assert done.status == 1
        assert done.out.startswith(f"order-7 ({NAME}, sleeping): at ")

    def test_other_workflows_are_left_out(self, shell: Shell, started: Run, tmp_path: Path) -> None:
        done = shell("replay-check", "--from", str(kept(shell, tmp_path / "h.jsonl")), "--workflow", "none")
        assert (done.status, done.err) == (0, "0 runs checked, none would diverge.\n")

    def test_options_of_the_database_are_refused(self, shell: Shell, started: Run, tmp_path: Path) -> None:
        assert shell("replay-check", "--from", "x", "--open").status == 2

    def test_a_file_that_is_none_gives_a_status_of_its_own(self, shell: Shell, db: None, tmp_path: Path) -> None:
        done = shell("replay-check", "--from", str(tmp_path / "none.jsonl"))
        assert done.status == 2
        assert "none.jsonl cannot be read" in done.err


class TestWhatIsRefused:
    def refusal(self, path: Path, change: Callable[[list[str]], list[str]]) -> str:
        lines = path.read_text(encoding="utf-8").splitlines()
        path.write_text("\n".join(change(lines)), encoding="utf-8")
        with pytest.raises(HistoryFileError) as caught:
            list(read_files([path]))
        return str(caught.value)

    @pytest.mark.parametrize("format", [0, 2, "1", None, True])
    def test_another_format(self, shell: Shell, started: Run, tmp_path: Path, format: object) -> None:
        def change(lines: list[str]) -> list[str]:
            return [json.dumps({**json.loads(lines[0]), "durable_history": format}), *lines[1:]]

        text = self.refusal(kept(shell, tmp_path / "h.jsonl"), change)
        assert f"line 1: the history has format {format!r}" in text
        assert "reads format 1" in text

    @pytest.mark.parametrize(
        ("change", "text"),
        [
            (lambda lines: lines[:-1], "line 1: the history of order-7 has no end, it was cut"),
            (lambda lines: [lines[0], *lines[2:]], "and has {'entries'"),
            (lambda lines: [lines[0], lines[1][:-20]], "line 2: expected a line of JSON"),
            (lambda lines: ["[1]"], "line 1: expected an object"),
            (lambda lines: lines[1:], "expected the beginning of a history"),
            (lambda lines: [lines[0], '{"entry":{}}'], "expected the fields location"),
            (lambda lines: [lines[0], "{}"], "line 2: not a line of a history"),
        ],
    )
    def test_a_damaged_file(
        self, shell: Shell, started: Run, tmp_path: Path, change: Callable[[list[str]], list[str]], text: str
    ) -> None:
        assert text in self.refusal(kept(shell, tmp_path / "h.jsonl"), change)

    @pytest.mark.parametrize(
        ("kind", "field", "value"),
        [
            ("run", "input", None),
            ("run", "workflow", 7),
            ("run", "created_at", None),
            ("run", "created_at", "0001-01-01T00:00:00+14:00"),
            ("run", "created_at", "9999-12-31T23:59:59-12:00"),
            ("run", "created_at", "2026-01-01T00:00:00"),
            ("run", "fence", True),
            ("run", "fence", "1"),
            ("run", "change_seq", 2**63),
            ("run", "origins", ["a", 1]),
            ("run", "generations", {"a": "b"}),
            ("run", "summary", {"kind": "paused"}),
            ("run", "error", {"type": "ValueError", "message": None, "traceback": ""}),
            ("entry", "location", ["pay"]),
            ("entry", "ordinal", None),
            ("entry", "data", []),
            ("entry", "data", "{}"),
        ],
    )
    def test_a_value_that_its_field_cannot_have(
        self, shell: Shell, started: Run, tmp_path: Path, kind: str, field: str, value: Any
    ) -> None:
        def change(lines: list[str]) -> list[str]:
            number = next(number for number, line in enumerate(lines) if kind in json.loads(line))
            data = json.loads(lines[number])
            data[kind][field] = value
            return [*lines[:number], json.dumps(data), *lines[number + 1 :]]

        text = self.refusal(kept(shell, tmp_path / "h.jsonl"), change)
        assert "not a line of a history" in text
        assert re.search(rf"\((?:{field}|message) is ", text)

    def test_an_export_for_reading(self, shell: Shell, started: Run, tmp_path: Path) -> None:
        (tmp_path / "e.jsonl").write_text(shell("export", "order-7").out, encoding="utf-8")
        with pytest.raises(HistoryFileError, match="Export the run with --history"):
            list(read_files([tmp_path / "e.jsonl"]))


class TestValues:
    def test_without_a_hook_every_value_is_a_placeholder_of_its_type(
        self, shell: Shell, started: Run, tmp_path: Path
    ) -> None:
        path = kept(shell, tmp_path / "h.jsonl", "--redact")
        text = path.read_text(encoding="utf-8")
        assert "Ada" not in text
        assert "12.50" not in text
        found = read(path)
        assert output_of(found, "price") == Price(Decimal(0), "(redacted)", True)
        done = shell("replay-check", "--from", str(path))  # its path did not depend on what was replaced
        assert (done.status, done.out) == (0, "")

    def test_with_a_hook_what_it_leaves_stays(self, shell: Shell, started: Run, tmp_path: Path) -> None:
        with override_settings(DURABLE={"REDACT": f"{__name__}.hide_currency"}):
            found = read(kept(shell, tmp_path / "h.jsonl", "--redact"))
        assert output_of(found, "price") == Price(Decimal("12.50"), "***", True)

    def test_a_field_that_its_class_does_not_show_is_replaced(self, shell: Shell, stage: Stage, tmp_path: Path) -> None:
        def paying(ctx: Context) -> None:
            ctx.step("card", cards)
            ctx.sleep("wait", "1 day")

        with deployed(paying) as made, override_settings(DURABLE={"REDACT": f"{__name__}.hide_currency"}):
            stage.start(made, id="order-7")
            path = kept(shell, tmp_path / "h.jsonl", "--redact")
            assert shell("replay-check", "--from", str(path)).status == 0
        found = read(path)
        card, extra = output_of(found, "card")
        assert (card.holder, extra.name) == ("Ada", "Ada")  # what the hook leaves
        assert card.number.startswith("(hidden")
        assert (card.code, extra.model_extra) == (0, {"pin": "pin-of-ada"})
        path = kept(shell, path, "--redact")  # without a hook
        assert "pin-of-ada" not in path.read_text(encoding="utf-8")
        assert "number-of-ada" not in path.read_text(encoding="utf-8")
        assert "Ada" not in path.read_text(encoding="utf-8")

    def test_a_hook_that_fails_discloses_nothing(self, shell: Shell, started: Run, tmp_path: Path) -> None:
        with override_settings(DURABLE={"REDACT": f"{__name__}.fail"}):
            path = kept(shell, tmp_path / "h.jsonl", "--redact")
        assert "Ada" not in path.read_text(encoding="utf-8")
        assert "EUR" not in path.read_text(encoding="utf-8")

    def test_encrypted_values_as_stored_and_decrypted(self, shell: Shell, stage: Stage, tmp_path: Path) -> None:
        with override_settings(
            DURABLE={
                "CODEC": "durable.crypto.FernetCodec",
                "ENCRYPTION_KEYS": [Fernet.generate_key()],
                "BIND_PAYLOADS": "require",
            }
        ):
            at = runtime.production()
            assert isinstance(at.codec, FernetCodec)
            runtime.activate(at)
            try:
                with deployed(order) as made:
                    Stage(at).start(made, 7, "Ada", id="order-7")
                stored = kept(shell, tmp_path / "stored.jsonl")
                plain = kept(shell, tmp_path / "plain.jsonl", "--decrypt")
            finally:
                runtime.deactivate(at)
        for each in ("Ada", "EUR"):  # as a word: what is encrypted may have any letters
            assert not re.search(rf"\b{each}\b", stored.read_text(encoding="utf-8"))
        assert "Ada" in plain.read_text(encoding="utf-8")
        with deployed(order):  # without the keys
            done = shell("replay-check", "--from", str(plain))
            assert (done.status, done.out) == (0, "")
            assert "cannot read" in shell("replay-check", "--from", str(stored)).out

    def test_a_value_that_cannot_be_read_ends_the_export(self, shell: Shell, started: Run, tmp_path: Path) -> None:
        Entry.objects.filter(run=started, location="price").update(output='{"$:gone":1}')
        done = shell("export", "order-7", "--history", "--decrypt")
        assert done.status == 1
        assert "cannot be exported" in done.err
        (tmp_path / "h.jsonl").write_text(done.out, encoding="utf-8")
        with pytest.raises(HistoryFileError, match="has no end"):
            list(read_files([tmp_path / "h.jsonl"]))


def hide_currency(_workflow: str, _field: str, value: Any) -> Any:
    return {**value, "currency": "***"} if isinstance(value, dict) and "currency" in value else value


def fail(_workflow: str, _field: str, _value: Any) -> Any:
    raise RuntimeError("no")
