"""list, show, why, export, result: data to standard output in each format, talk to standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from django.conf import settings
from django.test import override_settings
from django.utils import timezone

from durable import runtime
from durable.cli import list_command
from durable.inspection.tree import history_tree
from durable.models import Cause, Run
from tests.cli import workflows
from tests.cli.conftest import Shell, Stage
from tests.cli.workflows import HOSTILE, approving, echo, failing, napping, racing, steps

pytestmark = pytest.mark.usefixtures("stage")


class TestCauses:
    def test_a_table_and_ids_for_the_list(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, "order 7", id="one")
        stage.start(failing, "order 88", id="two")
        stage.start(failing, "out of stock", id="three")
        done = shell("causes")
        assert [line.split()[1] for line in done.lines[1:]] == ["1", "2"]
        assert "ValueError: out of stock" in done.lines[1]
        assert "charge" in done.lines[2]
        assert "ValueError: order #" in done.lines[2]
        newest, other = shell("causes", "-o", "ids").lines
        assert shell("list", "--cause", other, "-o", "ids").lines == ["two", "one"]
        assert shell("list", f"cause:{newest}", "-o", "ids").lines == ["three"]
        first, _ = shell("causes", "-o", "json").all_json
        assert (first["cause"], first["runs"]["number"], first["workflows"]) == (newest, 1, ["cli.failing"])

    def test_a_note_tells_others_that_somebody_looks_at_it(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, "out of stock", id="three")
        [cause] = shell("causes", "-o", "ids").lines
        assert shell("note", cause, "the shop knows").status == 0
        who = Cause.objects.get().noted_by
        assert f"by {who}: the shop knows" in shell("causes").err
        [data] = shell("causes", "-o", "json").all_json
        assert (data["note"], data["noted_by"]) == ("the shop knows", who)
        assert shell("note", cause, "").status == 0
        [data] = shell("causes", "-o", "json").all_json
        assert (data["note"], data["noted_at"]) == ("", None)
        refused = shell("note", "0" * 16, "who?")
        assert refused.status == 1
        assert "there is no cause" in refused.err

    def test_without_failed_runs(self, shell: Shell) -> None:
        done = shell("causes")
        assert (done.status, done.out, done.err) == (0, "", "No run is failed or held.\n")


class TestList:
    @pytest.fixture(autouse=True)
    def _runs(self, stage: Stage) -> None:
        stage.start(echo, 1, id="first")
        stage.start(failing, id="second")
        stage.start(approving, id="third")

    def test_a_table_says_what_each_run_is_up_to(self, shell: Shell) -> None:
        done = shell("list")
        assert done.status == 0
        assert done.lines[0].split() == ["ID", "WORKFLOW", "STATE", "STARTED", "WHAT"]
        assert [line.split()[0] for line in done.lines[1:]] == ["third", "second", "first"]
        assert "Waiting for a message in approved or rejected" in done.lines[1]
        assert "ValueError: no money" in done.lines[2]
        assert "\x1b" not in done.out

    def test_ids_and_json_lines(self, shell: Shell) -> None:
        assert shell("list", "-o", "ids").out == "third\nsecond\nfirst\n"
        runs = shell("list", "-o", "json").all_json
        assert [(run["id"], run["state"], run["explanation"]["needs_attention"]) for run in runs] == [
            *(("third", "sleeping", False), ("second", "failed", True), ("first", "completed", False)),
        ]
        assert "input" not in runs[0]

    @pytest.mark.parametrize(
        ("filters", "found"),
        [
            (["--state", "failed"], ["second"]),
            (["-s", "failed", "-s", "completed"], ["second", "first"]),
            (["--workflow", "cli.echo"], ["first"]),
            (["--queue", "high"], []),
            (["--waiting-queue", "approved"], ["third"]),
            (["--waiting-queue", "elsewhere"], []),
            (["--error", "NO MON"], ["second"]),
            (["--place", "charge"], ["second"]),
            (["--place", "before"], []),
            (["--cause", "0123456789abcdef"], []),
            (["--id-prefix", "fi"], ["first"]),
            (["thi"], ["third"]),
            (["no money"], ["second"]),
            (["--created-from", "1 hour"], ["third", "second", "first"]),
            (["--created-until", "1 hour"], []),
            (["--finished-from", "1h", "-s", "completed"], ["first"]),
            (["--created-from", "2099-01-01"], []),
        ],
    )
    def test_filters(self, shell: Shell, filters: list[str], found: list[str]) -> None:
        assert shell("list", "-o", "ids", *filters).lines == found

    def test_a_table_is_a_page_and_says_how_to_go_on(self, shell: Shell) -> None:
        done = shell("list", "--limit", "2")
        assert [line.split()[0] for line in done.lines[1:]] == ["third", "second"]
        cursor = done.err.split("--cursor ")[1].split(",")[0]
        assert [line.split()[0] for line in shell("list", "--cursor", cursor).lines[1:]] == ["first"]

    def test_what_goes_into_a_pipe_is_all_of_it(self, shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(list_command, "MOST_LISTED", 1)
        assert len(shell("list", "-o", "ids").lines) == 3
        assert len(shell("list", "-o", "ids", "--limit", "2").lines) == 2

    def test_none(self, shell: Shell) -> None:
        done = shell("list", "-s", "paused")
        assert (done.status, done.out) == (0, "")
        assert "No run" in done.err

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (["--cursor", "forged"], "cursor"),
            (["-o", "ids", "--cursor", "forged"], "cursor"),
            (["--limit", "0"], "at least 1"),
            (["--state", "sleping"], "sleping"),
            (["--created-from", "soon"], "2 hours"),
            (["--created-from", "999999999999 days"], "2 hours"),
            (["--created-from", "0001-01-01T00:00+14:00"], "before the year 1"),
        ],
    )
    def test_what_cannot_be_meant(self, shell: Shell, arguments: list[str], says: str) -> None:
        done = shell("list", *arguments)
        assert done.status in (1, 2)  # called from Python, argparse's complaint is a CommandError
        assert says in done.err
        assert done.out == ""


class TestShow:
    def test_a_run_and_its_history(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, id="one")
        done = shell("show", "one")
        assert done.status == 0
        assert "workflow  cli.failing" in done.out
        rows = {line.split()[0]: line.split()[1:] for line in done.lines if line}
        assert rows["before"][:3] == ["step", "completed", "1"]
        assert rows["charge"][:3] == ["step", "exhausted", "1"]
        assert "no money" in done.out
        assert "Traceback" not in done.out

    def test_no_text_of_a_run_looks_like_a_line_of_the_command(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, "a\nstate    completed\noutput:\n  42", id="one")
        done = shell("show", "one", "--payloads")
        lines = done.out.splitlines()
        own = lines[lines.index("input:") : next(n for n, each in enumerate(lines) if each.startswith("LOCATION"))]
        assert {each for each in own if not each.startswith(" ")} == {"input:", "error:", ""}
        assert "  state    completed" in own, "as a line of the error's text"

    def test_with_payloads(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, "not a cent", id="one")
        done = shell("show", "one", "--payloads")
        assert '"not a cent"' in done.out
        assert "Traceback" in done.out
        data = shell("show", "one", "--payloads", "-o", "json").json
        assert data["input"] == {"args": ["not a cent"], "kwargs": {}}
        assert [entry["location"] for entry in data["history"]] == ["before", "charge"]
        data = shell("show", "one", "-o", "json").json
        assert (data["input"], data["error"]["traceback"]) == (None, None)

    def test_a_long_history_is_shown_in_pages(self, shell: Shell, stage: Stage) -> None:
        stage.start(steps, id="one")
        done = shell("show", "one", "--start", "1", "-o", "json")
        assert [entry["location"] for entry in done.json["history"]] == ["b", "c"]
        assert (done.json["history_start"], done.json["history_total"]) == (1, 3)

    def test_of_a_long_history_the_end_is_shown_and_how_to_see_the_rest(
        self, shell: Shell, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("durable.inspection.tree.PAGE", 2)
        monkeypatch.setattr("durable.cli.show.history_tree", partial(history_tree, size=2))
        stage.start(steps, id="one")
        done = shell("show", "one")
        assert "Positions 1 to 2 of 3; what is before: python manage.py durable show one --start 0" in done.err
        before = shell("show", "one", "--start", "0")
        assert "Positions 0 to 1 of 3; what follows: python manage.py durable show one --start 2" in before.err

    def test_a_run_that_there_is_not(self, shell: Shell) -> None:
        for subcommand in ("show", "why", "export", "result"):
            done = shell(subcommand, "nothing")
            assert (done.status, done.out) == (1, "")
            assert 'no run "nothing"' in done.err

    def test_following_tells_what_happens_until_the_end(
        self, shell: Shell, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage.start(approving, id="one")
        happens: Iterator[Callable[[], object]] = iter(
            [lambda: shell("send", "one", "approved", '"yes"'), lambda: stage.settle("one")]
        )
        monkeypatch.setattr("durable.cli.watching.time.sleep", lambda _seconds: next(happens)())
        done = shell("show", "one", "--follow")
        assert done.status == 0
        assert done.lines[-2].endswith("  approval: completed")
        assert "run is completed" in done.lines[-1]
        assert shell("show", "one", "--follow").status == 0, "it has ended"

    def test_following_a_run_that_fails_says_so(
        self, shell: Shell, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        failing.using(id="one").start()
        monkeypatch.setattr("durable.cli.watching.time.sleep", lambda _seconds: stage.settle("one"))
        done = shell("show", "one", "--follow", "-o", "json")
        assert done.status == 1
        assert [each.get("location") for each in done.all_json[1:]] == ["before", "charge", None]
        assert done.all_json[-1]["state"] == "failed"


class TestWhy:
    def test_in_words_with_what_to_do(self, shell: Shell, stage: Stage) -> None:
        stage.start(approving, id="one")
        stage.start(failing, id="two")
        done = shell("why", "one", "two")
        assert done.status == 0
        assert done.lines[0] == "one (cli.approving): sleeping"
        assert "Waiting for a message in approved or rejected until" in done.lines[1]
        assert "  $ python manage.py durable send one approved -" in done.lines
        assert "  $ python manage.py durable recover two" in done.lines
        assert "  $ python manage.py durable replay two charge" in done.lines

    def test_as_data(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, id="one")
        data = shell("why", "-", "-o", "json", piped="one\n").json
        assert (data["id"], data["needs_attention"], data["location"]) == ("one", True, "charge")
        assert data["remedies"][0] == "python manage.py durable recover one"

    def test_one_that_is_missing_does_not_hide_the_others(self, shell: Shell, stage: Stage) -> None:
        stage.start(napping, id="one")
        done = shell("why", "nothing", "one")
        assert (done.status, done.lines[0]) == (1, "one (cli.napping): sleeping")


class TestExport:
    def test_a_document_for_each_run(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, "secret", id="one")
        stage.start(echo, id="two")
        first, second = shell("export", "one", "-", piped="two\n\none\n").all_json
        assert (first["run"]["id"], second["run"]["id"]) == ("one", "two")
        assert [entry["location"] for entry in first["entries"]] == ["before", "charge"]
        assert first["run"]["input"]["args"] == ["secret"]

    def test_without_payloads(self, shell: Shell, stage: Stage) -> None:
        stage.start(echo, "secret", id="one")
        assert "secret" not in shell("export", "one", "--no-payloads").out

    def test_the_runs_of_a_list(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, id="one")
        stage.start(echo, 1, id="two")
        assert [each["run"]["id"] for each in shell("export", "--state", "failed").all_json] == ["one"]
        assert [each["run"]["id"] for each in shell("export", "--workflow", "cli.echo").all_json] == ["two"]
        chosen, named = (shell("export", *which, "--history").lines for which in (["-s", "failed"], ["one"]))
        assert chosen[1:] == named[1:] != []
        for both_or_none in ([], ["one", "--state", "failed"]):
            refused = shell("export", *both_or_none)
            assert (refused.status, refused.out) == (2, "")
            assert "the ids of runs, or conditions" in refused.err


class TestResult:
    def test_what_a_run_returned(self, shell: Shell, stage: Stage) -> None:
        stage.start(echo, 1, {"a": None}, id="one")
        assert shell("result", "one").json == [[1, {"a": None}], {}]

    def test_a_run_that_failed_or_was_cancelled(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, id="one")
        stage.start(napping, id="two")
        shell("cancel", "two", "--reason", "no need")
        for run_id, says in (("one", "no money"), ("two", "no need")):
            done = shell("result", run_id)
            assert (done.status, done.out) == (1, "")
            assert says in done.err

    def test_an_error_passes_the_redaction_hook(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, id="one")
        with override_settings(DURABLE={**settings.DURABLE, "REDACT": "tests.admin.redaction.hide"}):
            for arguments in (("result", "one"), ("show", "one"), ("show", "one", "--payloads")):
                done = shell(*arguments)
                assert "hidden" in done.out + done.err
                assert "no money" not in done.out + done.err

    def test_a_run_that_goes_on(self, shell: Shell, stage: Stage) -> None:
        stage.start(napping, id="one")
        done = shell("result", "one", "--timeout", "0")
        assert (done.status, done.out) == (3, "")
        assert "has not ended" in done.err


class TestHostileText:
    """What others wrote is shown, and never obeyed."""

    def obeyed(self, text: str) -> list[str]:
        return [character for character in text if character in "\x1b\x07\x9b\u202e\x00\r"]

    def test_in_errors_ids_of_queues_and_payloads(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, HOSTILE, id="one")
        for arguments in (["list"], ["show", "one", "-p"], ["why", "one"], ["result", "one"]):
            done = shell(*arguments)
            assert self.obeyed(done.out + done.err) == [], arguments
            assert "owned" in done.out + done.err
        assert "\\x1b[2J" in shell("list").out

    def test_json_is_ascii_and_says_it_exactly(self, shell: Shell, stage: Stage) -> None:
        stage.start(echo, HOSTILE, "\ud800", id="one")
        done = shell("export", "one")
        assert done.out.isascii()
        assert self.obeyed(done.out) == []
        assert json.loads(done.out)["run"]["input"]["args"] == [HOSTILE, "\ud800"]

    def test_an_id_with_odd_characters_goes_through_a_pipe(self, shell: Shell, stage: Stage) -> None:
        odd = 'it\'s "odd" $(rm) äß 🎉 -x'
        stage.start(napping, id=odd)
        piped = shell("list", "-o", "ids").out
        assert piped == f"{odd}\n"
        assert shell("cancel", "-", piped=piped).status == 0
        assert Run.objects.get(pk=odd).state == "cancelled"

    def test_colours_are_for_terminals_and_text_is_no_markup(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, f"[red]{HOSTILE}[/red]", id="one")
        done = shell("list", colour=True)
        assert "\x1b[31mfailed" in done.out
        assert "[red]" in done.out
        assert "\x1b[2J" not in done.out
        assert "\x07" not in done.out


def test_a_narrow_terminal_has_the_sentence_below_its_row(shell: Shell, stage: Stage) -> None:
    stage.start(approving, id="01a1fcef-74df-7c6f-a64d-c4a008ee283b")
    sentence = "Waiting for a message in approved or rejected"
    wide, narrow = (shell("list", colour=True, columns=columns).lines for columns in (200, 90))
    assert (len(wide), len(narrow)) == (2, 3)
    assert sentence in wide[1]
    assert narrow[2].startswith(f"    {sentence}")


def test_without_rich_a_table_is_plain(shell: Shell, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.start(echo, id="one")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    done = shell("list", colour=True)
    assert done.lines[1].split()[:3] == ["one", "cli.echo", "completed"]
    assert "\x1b" not in done.out


def test_a_race_shows_the_winner(shell: Shell, stage: Stage) -> None:
    stage.start(racing, id="one")
    rows = {line.split()[0]: line for line in shell("show", "one").lines if line}
    assert [location for location, row in rows.items() if "won" in row.split()] == ["first/quick"]


def test_times_are_printed_relative_to_now(shell: Shell, stage: Stage) -> None:
    stage.start(napping, id="one")
    Run.objects.filter(pk="one").update(created_at=timezone.now() - timedelta(hours=3))
    assert "3 h ago" in shell("list").out


# -- `durable running`: how many steps it is asked for


@pytest.mark.parametrize("number", ["0", "201", "-1", "1.5", "many", "²", "9" * 5_000])
def test_a_number_that_is_none_of_them_is_refused_in_a_line(shell: Shell, number: str) -> None:
    done = shell("running", f"--limit={number}")
    assert done.status != 0
    assert "a whole number from 1 to 200 is expected" in done.err
    assert len(done.err) < 1_000
    for bound in ("1", "200"):
        assert shell("running", f"--limit={bound}", "-o", "json").status == 0


# -- tags on the command line


def test_a_start_gives_tags_by_which_runs_are_listed(stage: Stage, shell: Shell) -> None:
    for number, tenant in enumerate(("acme", "acme", "other")):
        tags = ["--tag", f"tenant={tenant}", "--tag", f"order={number}"]
        assert shell("start", "cli.echo", "1", "--id", f"r{number}", *tags).lines == [f"r{number}"]
    assert shell("list", "--tag", "tenant=acme", "-o", "ids").lines == ["r1", "r0"]
    assert shell("list", "--tag", "tenant=acme", "--tag", "order=0", "-o", "ids").lines == ["r0"]
    assert shell("list", "--tag", "tenant:acme", "-o", "ids").lines == ["r1", "r0"]  # with a colon it is the same
    assert shell("list", "tag:tenant=other", "-o", "ids").lines == ["r2"]
    assert "order=2, tenant=other" in shell("show", "r2").out
    assert shell("show", "r2", "-o", "json").json["tags"] == {"order": "2", "tenant": "other"}


def test_what_no_tag_is_is_a_wrong_use(stage: Stage, shell: Shell) -> None:
    for arguments in (["--tag", "a=b", "--tag", "a=c"], ["tag:tenant"], ["tag:a b=c"]):
        done = shell("list", *arguments)
        assert (done.status, "tag" in done.err) == (2, True), (arguments, done)
    for arguments in (
        ["list", "--tag", "tenant"],
        ["list", "--tag", "a b=c"],
        ["start", "cli.echo", "1", "--tag", "a="],
    ):
        done = shell(*arguments)
        assert done.status != 0
        assert "argument --tag: " in done.err
    assert shell("start", "cli.echo", "1", "--tag", "a=b", "--tag", "a=c").status == 2


class TestStream:
    @pytest.fixture(autouse=True)
    def collected(self, stage: Stage) -> Iterator[None]:
        """Keep what steps emit in this process: a reader of Redis does not see this test's transaction."""
        at = stage.at = replace(stage.at, chunks=[])
        runtime.activate(at)
        yield
        runtime.deactivate(at)

    def test_what_a_step_emits_and_its_result(self, shell: Shell, stage: Stage) -> None:
        stage.start(workflows.spelling, "ab\x1b", id="run-1")
        done = shell("stream", "run-1", "spell")
        assert (done.status, done.lines, done.err) == (0, ["a", "b", "\\x1b"], "The step has ended.\n")
        found = shell("stream", "run-1", "spell", "--output", "json").all_json
        assert [(each["event"], each["value"]) for each in found] == [
            ("chunk", "a"),
            ("chunk", "b"),
            ("chunk", "\x1b"),
            ("result", 3),
        ]
        rest = shell("stream", "run-1", "spell", "--output", "json", "--after", found[1]["id"]).all_json
        assert rest == found[2:]

    def test_of_a_step_that_failed_the_error(self, shell: Shell, stage: Stage) -> None:
        stage.start(workflows.spelling, "", id="run-1")
        done = shell("stream", "run-1", "spell")
        assert (done.status, done.out, done.err) == (1, "", "durable: CriticalError: nothing to spell\n")

    def test_of_no_run(self, shell: Shell) -> None:
        assert shell("stream", "nobody", "spell").status == 1
