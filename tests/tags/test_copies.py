"""Tags of runs that are exported and imported."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.test import override_settings

from durable import Break, Context, Continue, Handle, get_run, workflow
from durable.histories import HistoryFileError, Values, read_files, written_history
from durable.models import Run, RunTag
from durable.runtime import Runtime
from tests.support.stores import settle


@workflow(name="tests.tag_copies.one")
def one(ctx: Context) -> None:
    ctx.tag(stage="new", sum=1)
    ctx.step("one", lambda: 1)
    ctx.tag(stage="done")


def a_run() -> Handle[Any]:
    run = one.using(id="a", tags={"tenant": "acme", "stage": "start"}).start()
    settle()
    return run


def exported(run: Handle[Any], path: Path, values: Values = Values.STORED) -> Path:
    path.write_text("\n".join(written_history(run.id, values)) + "\n", encoding="utf-8")
    return path


def imported(path: Path, *options: str) -> str:
    out = io.StringIO()
    call_command("durable", "import", str(path), *options, stdout=out, stderr=out)
    return out.getvalue()


def test_an_imported_run_has_the_tags_of_its_original(at: Runtime, tmp_path: Path) -> None:
    run = a_run()
    imported(exported(run, tmp_path / "file"), "--as-prefix", "copy-")
    copy = get_run("copy-a")
    assert copy.tags == run.tags == {"stage": "done", "sum": "1", "tenant": "acme"}
    assert [each.id for each in Run.objects.tagged(tenant="acme", stage="done")] == ["copy-a", "a"]
    assert copy.restart().tags == {"stage": "start", "tenant": "acme"}
    assert copy.replay("one").tags == {"stage": "new", "sum": "1", "tenant": "acme"}


def test_a_redacted_export_has_no_value_of_a_tag(at: Runtime, tmp_path: Path) -> None:
    run = a_run()
    path = exported(run, tmp_path / "file", Values.REDACTED)
    text = path.read_text(encoding="utf-8")
    assert "acme" not in text
    assert "done" not in text.replace('"state":"completed"', "")
    [history] = read_files([path])
    assert history.tags == dict.fromkeys(["stage", "sum", "tenant"], "(redacted)")


def test_the_hook_says_which_values_a_redacted_export_shows(at: Runtime, tmp_path: Path) -> None:
    run = a_run()
    with override_settings(DURABLE={"REDACT": "tests.tags.test_copies.only_stages"}):
        [history] = read_files([exported(run, tmp_path / "file", Values.REDACTED)])
    assert history.tags == {"stage": "done", "sum": "?", "tenant": "?"}
    assert history.entries[0].data["tags"] == {"stage": "new", "sum": "?"}


def only_stages(workflow: str, field: str, value: Any) -> Any:
    return value if field == "tag:stage" else "?"


def test_a_run_without_tags_is_written_as_before(at: Runtime) -> None:
    run = plain.start()
    settle()
    first = json.loads(next(written_history(run.id)))
    assert set(first) == {"durable_history", "exported_at", "values", "run"}


@workflow(name="tests.tag_copies.plain")
def plain(ctx: Context) -> None:
    ctx.step("one", lambda: 1)


@pytest.mark.parametrize(
    "tags",
    ["acme", ["tenant"], {"tenant": 1}, {"a b": "x"}, {"tenant": ""}, {"t": "x" * 201}, {"t": "hmac-sha256:" * 20}],
)
def test_a_file_with_what_are_no_tags_is_refused(at: Runtime, tmp_path: Path, tags: Any) -> None:
    path = exported(a_run(), tmp_path / "file")
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), "tags": tags}), *rest]), encoding="utf-8")
    with pytest.raises(HistoryFileError, match="not a line of a history"):
        list(read_files([path]))
    assert RunTag.objects.filter(run_id="a").count() == 3


def test_tags_of_the_start_that_the_run_does_not_have_are_refused(at: Runtime, tmp_path: Path) -> None:
    path = exported(a_run(), tmp_path / "file")
    first, *rest = path.read_text(encoding="utf-8").splitlines()
    more = {"tags_at_start": {f"t{number}": "x" for number in range(8)}}
    path.write_text("\n".join([json.dumps({**json.loads(first), **more}), *rest]), encoding="utf-8")
    with pytest.raises(HistoryFileError, match='the tag "t0", which the run does not have'):
        list(read_files([path]))


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"tags": None, "before": {}},
        {"tags": {"stage": "new"}},
        {"tags": {"stage": 1}, "before": {}},
        {"tags": {"stage": "x" * 201}, "before": {}},
        {"tags": {"a b": "x"}, "before": {}},
        {"tags": {"stage": "new"}, "before": ["stage"]},
        {"tags": {"stage": "new"}, "before": {"stage": "x" * 10_000}},
        {"tags": {"stage": "new"}, "before": {"stage": {}}},
        {"tags": {"stage": "new"}, "before": {}, "pruned_tags": {"stage": 1}},
        {"tags": {"stage": "new"}, "before": {}, "pruned_tags": {"stage": ["1", None, 2, "x"]}},
        {"tags": {"stage": "new"}, "before": {}, "pruned_tags": {"stage": [1, 2, 3, "x"]}},
        {"tags": {f"t{number}": "x" for number in range(9)}, "before": {}},
    ],
)
def test_an_entry_with_what_are_no_tags_is_refused(at: Runtime, tmp_path: Path, data: Any) -> None:
    path = exported(a_run(), tmp_path / "file")
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    lines[1]["entry"]["data"] = data
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    out = io.StringIO()
    with pytest.raises(SystemExit):
        call_command("durable", "import", str(path), "--as-prefix", "copy-", stdout=out, stderr=out)
    assert 'the tags of the entry "tag~0" cannot be read' in out.getvalue()
    assert not Run.objects.filter(id="copy-a").exists()


@workflow(name="tests.tag_copies.looped")
def looped(ctx: Context) -> None:
    ctx.loop("rounds", _round, state=0, history_prune_interval=1, history_size=0)


def _round(ctx: Context, number: int) -> Any:
    ctx.tag(customer=f"lovelace {number}")
    return Break() if number == 3 else Continue(number + 1)


def test_a_copy_of_pruned_tags_is_redacted_too(at: Runtime, tmp_path: Path) -> None:
    run = looped.using(id="a", tags={"customer": "lovelace"}).start()
    settle()
    imported(exported(run, tmp_path / "file"), "--as-prefix", "copy-")
    copy = get_run("copy-a")
    assert copy.tags == {"customer": "lovelace 3"}
    assert copy.replay("rounds").tags == {"customer": "lovelace"}
    path = exported(run, tmp_path / "redacted", Values.REDACTED)
    assert "lovelace" not in path.read_text(encoding="utf-8")
    imported(path, "--as-prefix", "hidden-")
    assert get_run("hidden-a").replay("rounds").tags == {"customer": "(redacted)"}
    out = io.StringIO()
    with override_settings(DURABLE={"REDACT": "tests.tags.test_copies.only_stages"}):
        call_command("durable", "export", "a", stdout=out)
    assert "lovelace" not in out.getvalue()
