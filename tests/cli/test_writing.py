"""The verbs, start, send, ask, replay: what they change, the actor, what they refuse, and what they ask first."""

from __future__ import annotations

import io
import os
import pwd
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import OperationalError

from durable import get_run, runtime
from durable.cli import subcommand
from durable.conf import conf
from durable.inspection.bulks import find_bulk
from durable.models import OperatorAction, QueueMessage, Run
from durable.operations.bulk import BULK_OPTIONS
from durable.operations.events import deliver_open
from tests.cli import workflows
from tests.cli.conftest import Shell, Stage, state
from tests.cli.workflows import approving, asked, compensated, echo, failing, napping, paid, refusing, steps, typed

pytestmark = pytest.mark.usefixtures("stage")


def actions() -> list[tuple[Any, ...]]:
    return list(OperatorAction.objects.order_by("id").values_list("action", "run_id", "outcome", "reason"))


class Endless(io.StringIO):
    """A pipe that never ends, as that of `yes`."""

    given = 0

    def read(self, size: int | None = -1, /) -> str:
        assert size is not None
        assert size >= 0, "it is read until memory ends"
        self.given += size
        return "9" * size


class TestVerbs:
    def test_recover_continues_the_runs_of_a_cause_and_no_other(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, "declined 1", id="one")
        stage.start(failing, "declined 2", id="two")
        stage.start(failing, "away", id="three")
        _, declined = shell("causes", "-o", "ids").lines
        assert shell("recover", "--cause", declined, "--dry-run", "-o", "ids").lines == ["two", "one"]
        done = shell("recover", "--cause", declined)
        assert (done.status, done.err) == (0, "2 recovered\n")
        assert [state(each) for each in ("one", "two", "three")] == ["pending", "pending", "failed"]

    @pytest.mark.parametrize("source", ["ids", "cause", "lines"])
    def test_several_runs_are_one_bulk_of_the_audit_log(self, shell: Shell, stage: Stage, source: str) -> None:
        for each in ("one", "two"):
            stage.start(failing, "declined 1", id=each)
        if source == "ids":
            done = shell("recover", "one", "two", "gone", "--reason", "the bank is back")
        elif source == "cause":
            [cause] = shell("causes", "-o", "ids").lines
            done = shell("recover", "--cause", cause, "--reason", "the bank is back")
        else:
            done = shell("recover", "-", "--reason", "the bank is back", "-o", "ids", piped="one\ntwo\n")
            assert sorted(done.lines) == ["one", "two"]
        assert done.err.splitlines()[-1].startswith("2 recovered")
        head, *rows = OperatorAction.objects.order_by("id")
        assert (head.action, head.outcome, head.bulk_id, head.reason) == ("recover", "done", "", "the bank is back")
        assert {row.bulk_id for row in rows} == {head.run_id}
        found = find_bulk(head.run_id)
        assert found is not None
        assert (found.done.number, found.refused.number) == (2, int(source == "ids"))

    def test_several_replays_are_one_bulk_that_knows_the_new_runs(self, shell: Shell, stage: Stage) -> None:
        for each in ("one", "two"):
            stage.start(failing, "declined 1", id=each)
        made = shell("replay-failed", "one", "two", "-o", "ids").lines
        bulk_id = OperatorAction.objects.order_by("id")[0].run_id
        assert len(made) == 2
        assert all(each.startswith(f"{bulk_id}-") for each in made)

    @pytest.mark.parametrize("arguments", [[], ["one", "--cause", "0123456789abcdef"]])
    def test_runs_are_named_by_ids_or_by_a_cause(self, shell: Shell, arguments: list[str]) -> None:
        done = shell("recover", *arguments)
        assert done.status == 2
        assert "give either ids of runs or one of --cause, --place" in done.err

    def test_retry_is_an_alias_of_recover(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, id="one")
        done = shell("retry", "one")
        assert (done.status, done.out, done.err) == (0, "", "1 recovered\n")
        assert actions() == [("recover", "one", "done", "")]
        assert shell("retry", "-", piped="").status == 0, "nothing is nothing to do"

    def test_restart_prints_the_new_runs(self, shell: Shell, stage: Stage) -> None:
        stage.start(echo, 5, id="one")
        done = shell("restart", "one")
        (new,) = done.lines
        assert stage.settle(new).replay_of_id == "one"
        assert get_run(new).output == [[5], {}]

    def test_a_refusal_is_printed_and_stops_none_of_the_others(self, shell: Shell, stage: Stage) -> None:
        stage.start(echo, id="ended")
        stage.start(napping, id="asleep")
        done = shell("cancel", "ended", "nothing", "asleep")
        assert done.status == 1
        assert state("asleep") == "cancelled"
        assert [line.startswith("durable: ") for line in done.err.splitlines()] == [True, True, False]
        assert done.err.splitlines()[-1] == "1 cancelled, or asked to, 2 refused"
        bulk = OperatorAction.objects.order_by("id")[0].run_id
        assert {action[:3] for action in actions()} == {
            *(("cancel", "ended", "refused"), ("cancel", "nothing", "missing"), ("cancel", "asleep", "done")),
            ("cancel", bulk, "done"),
        }

    def test_results_as_json(self, shell: Shell, stage: Stage) -> None:
        stage.start(napping, id="one")
        first, second = shell("restart", "one", "nothing", "-o", "json").all_json
        assert (first["id"], first["outcome"], Run.objects.get(pk=first["new_id"]).workflow) == (
            "one",
            "done",
            "cli.napping",
        )
        assert (second["id"], second["outcome"]) == ("nothing", "missing")
        assert "nothing" in second["detail"]

    def test_another_number_than_expected_does_nothing(self, shell: Shell, stage: Stage) -> None:
        stage.start(napping, id="one")
        stage.start(napping, id="two")
        stage.start(echo, "x", id="ended")
        refused = shell("cancel", "one", "two", "ended", "--expect", "3")
        assert refused.status == 1
        assert "was expected to act on 3 runs, and 2 allow it now" in refused.err
        assert [state(each) for each in ("one", "two")] == ["sleeping"] * 2
        assert actions() == []
        assert shell("cancel", "one", "two", "--expect", "2").status == 0
        assert [state(each) for each in ("one", "two")] == ["cancelled"] * 2

    def test_a_dry_run_says_and_does_nothing(self, shell: Shell, stage: Stage) -> None:
        stage.start(echo, id="ended")
        stage.start(napping, id="asleep")
        done = shell("cancel", "ended", "asleep", "nothing", "--dry-run")
        assert done.status == 0
        assert done.lines == [
            "ended: no, it is completed",
            "asleep: yes, it is sleeping",
            "nothing: no, there is no such run",
        ]
        assert shell("cancel", "ended", "asleep", "--dry-run", "-o", "ids").lines == ["asleep"]
        assert [each["allowed"] for each in shell("cancel", "ended", "asleep", "-o", "json", "--dry-run").all_json] == [
            *(False, True),
        ]
        assert (state("asleep"), actions()) == ("sleeping", [])

    def test_a_dry_run_of_a_retry_says_what_was_undone_and_is_done_again(self, shell: Shell, stage: Stage) -> None:
        stage.start(compensated, id="undone")
        stage.start(failing, id="failed")
        done = shell("retry", "undone", "failed", "--dry-run")
        assert done.lines[0].startswith(
            'undone: yes, it is failed; 1 step was undone ("charge"). Recovering the run does what was undone'
        )
        assert done.lines[1] == "failed: yes, it is failed"
        assert shell("retry", "undone", "--dry-run", "-o", "json").json == {
            "id": "undone",
            "state": "failed",
            "allowed": True,
            "undone": ["charge"],
            "done_again_from": "charge",
        }

    def test_what_was_undone_is_shown_everywhere(self, shell: Shell, stage: Stage) -> None:
        stage.start(compensated, id="undone")
        assert ["charge", "step", "completed", "1", "undone"] in [
            each.split() for each in shell("show", "undone").lines
        ]
        history = shell("show", "undone", "-o", "json").json["history"]
        assert {each["location"]: each["note"] for each in history}["charge"] == "undone"
        assert "compensated: 1 step was undone" in shell("list", "-o", "json").json["explanation"]["headline"]
        assert "1 of them compensated: a recovery does the undone steps again" in " ".join(shell("doctor").out.split())

    @pytest.mark.parametrize(("answer", "became"), [("y\n", "cancelled"), ("n\n", "sleeping"), ("", "sleeping")])
    def test_at_a_terminal_many_are_asked_for(self, shell: Shell, stage: Stage, answer: str, became: str) -> None:
        for run_id in ("one", "two"):
            stage.start(napping, id=run_id)
        done = shell("cancel", "one", "two", typed=answer)
        assert "Cancel 2 runs? [y/N]" in done.err
        assert {state("one"), state("two")} == {became}
        assert done.status == (0 if became == "cancelled" else 1)

    def test_yes_and_a_single_run_are_not_asked_for(self, shell: Shell, stage: Stage) -> None:
        for run_id in ("one", "two", "three"):
            stage.start(napping, id=run_id)
        assert "[y/N]" not in shell("cancel", "one", typed="").err
        assert "[y/N]" not in shell("cancel", "two", "three", "--yes", typed="").err
        assert {state(each) for each in ("one", "two", "three")} == {"cancelled"}


class TestActors:
    def test_by_default_the_actor_is_the_user_of_the_system_and_not_of_the_environment(
        self, shell: Shell, stage: Stage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
            monkeypatch.setenv(name, "ceo")
        stage.start(napping, id="one")
        shell("cancel", "one")
        action = OperatorAction.objects.get()
        assert (action.source, action.actor_id, action.actor_label) == ("cli", None, pwd.getpwuid(os.getuid()).pw_name)
        assert action.actor_label != "ceo"

    def test_a_system_without_names(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def unknown(_uid: int) -> str:
            raise KeyError("getpwuid(): uid not found: 4711")

        monkeypatch.setattr(pwd, "getpwuid", unknown)
        assert subcommand.shell_actor(None).label.startswith("uid ")

    @pytest.mark.parametrize("name", ["nobody", "gone"])
    def test_an_unknown_user(self, shell: Shell, stage: Stage, name: str) -> None:
        User.objects.create_user("gone", is_active=False, is_superuser=True)
        stage.start(napping, id="one")
        done = shell("cancel", "one", "--as", name)
        assert (done.status, state("one")) == (2, "sleeping")
        assert repr(name) in done.err


class TestStart:
    def test_arguments_are_json_or_text(self, shell: Shell, stage: Stage) -> None:
        done = shell(
            "start",
            "cli.echo",
            "1",
            "text",
            '"2"',
            "null",
            '{"a": [true]}',
            "-3",
            "-k",
            "x=1.5",
            "-k",
            "y=no",
            "--id",
            "one",
        )
        assert (done.status, done.out) == (0, "one\n")
        stage.settle("one")
        assert get_run("one").output == [[1, "text", "2", None, {"a": [True]}, -3], {"x": 1.5, "y": "no"}]

    def test_options(self, shell: Shell) -> None:
        data = shell("start", "cli.echo", "-q", "high", "--delay", "10 minutes", "-o", "json").json
        run = Run.objects.get(pk=data["id"])
        assert (run.queue, run.wake_at and (run.wake_at - run.created_at).total_seconds()) == ("high", 600)
        assert actions() == [("start", run.id, "done", "")]

    def test_the_same_again_and_a_conflict(self, shell: Shell) -> None:
        for _ in range(2):
            assert shell("start", "cli.echo", "1", "--id", "one").out == "one\n"
        assert Run.objects.count() == 1
        for arguments in (["2"], ["1", "--new"]):
            done = shell("start", "cli.echo", *arguments, "--id", "one")
            assert (done.status, done.out) == (1, "")
            assert '"one"' in done.err

    @pytest.mark.parametrize(
        ("arguments", "status", "says"),
        [
            (["cli.ecko"], 2, "cli.echo"),
            (["cli.failing", "a", "b"], 1, "cannot be started"),
            (["cli.failing", "-k", "nonsense=1"], 1, "nonsense"),
            (["cli.echo", "--id", "a/b"], 1, "printable"),
        ],
    )
    def test_what_cannot_be_started(self, shell: Shell, arguments: list[str], status: int, says: str) -> None:
        done = shell("start", *arguments)
        assert (done.status, done.out) == (status, "")
        assert says in done.err
        assert not Run.objects.exists()

    @pytest.mark.parametrize(
        ("argument", "says"),
        [
            *((broken, "JSON") for broken in ('{"a": 1', "[1,]", '"open', "[NaN]")),
            *((huge, f"the number {huge.strip('[]')} is too large") for huge in ("1e400", "-1.5E+999", "[1e400]")),
        ],
    )
    def test_broken_json_and_a_number_that_no_float_holds_are_no_text(
        self, shell: Shell, argument: str, says: str
    ) -> None:
        assert says in shell("start", "cli.echo", "--", argument).err
        assert not Run.objects.exists()

    def test_a_big_argument_through_a_pipe(self, shell: Shell, stage: Stage) -> None:
        shell("start", "cli.echo", "-", "--id", "one", piped='{"many": [1, 2, 3]}\n')
        stage.settle("one")
        assert get_run("one").result()[0] == [{"many": [1, 2, 3]}]

    def test_a_pipe_is_read_no_further_than_a_value_may_be_long(self, shell: Shell) -> None:
        endless = Endless()
        done = shell("start", "cli.echo", "-", piped=endless)
        assert done.status != 0
        assert "MAX_PAYLOAD_BYTES" in done.err
        assert 0 < endless.given <= 3 * conf.MAX_PAYLOAD_BYTES
        assert not Run.objects.exists()


class TestMessages:
    def test_send(self, shell: Shell, stage: Stage) -> None:
        stage.start(approving, id="one")
        done = shell("send", "one", "approved", '{"by": 7}')
        assert done.out == f"{QueueMessage.objects.get().id}\n"
        assert stage.settle("one").state == "completed"
        assert get_run("one").output == {"by": 7}

    def test_publish(self, shell: Shell, stage: Stage) -> None:
        stage.start(paid, id="one")
        stage.settle("one")
        done = shell("publish", "order.paid", '{"by": 7}', "--key", "7", "--id", "payment-7")
        assert (done.status, done.out) == (0, "payment-7\n")
        deliver_open(60.0)  # this transaction never commits
        assert stage.settle("one").state == "completed"
        assert get_run("one").output == {"by": 7}
        assert shell("publish", "order.paid", '{"by": 7}', "--key", "7", "--id", "payment-7").status == 0
        done = shell("publish", "order.paid", '{"by": 8}', "--key", "7", "--id", "payment-7")
        assert (done.status, "with another body" in done.err) == (1, True)
        assert shell("publish", "order.paid", "--key", "").status == 2

    def test_a_message_that_the_workflow_does_not_declare_is_refused(self, shell: Shell, stage: Stage) -> None:
        stage.start(typed, id="one")
        for queue, body, said in [
            ("cuont", "7", 'the workflow cli.typed accepts no message "cuont"; did you mean "count"?'),
            ("count", '"seven"', 'accepts no such body of a message to "count": expected a whole number, found text'),
        ]:
            for verb in ("send", "ask"):
                done = shell(verb, "one", queue, body)
                assert done.status == 1
                assert said in done.err
        assert not QueueMessage.objects.exists()
        shell("send", "one", "count", "7")
        assert stage.settle("one").output == "7"

    def test_a_message_to_the_wrong_run_is_moved_or_deleted(self, shell: Shell, stage: Stage) -> None:
        for each in ("one", "two"):
            stage.start(approving, id=each)
        moved, deleted = (shell("send", "one", "approved", body).out.strip() for body in ("1", "2"))
        assert shell("move-message", "one", moved, "two").status == 0
        assert shell("delete-message", "one", deleted).status == 0
        assert (stage.settle("one").state, get_run("two").output) == ("sleeping", None)
        stage.settle("two")
        assert get_run("two").output == 1
        refused = shell("move-message", "two", moved, "one")
        assert refused.status == 1
        assert "has received the message" in refused.err

    def test_a_message_with_an_id_is_sent_once(self, shell: Shell, stage: Stage) -> None:
        stage.start(approving, id="one")
        first, second = (shell("send", "one", "news", "1", "--message-id", "a").out for _ in range(2))
        assert first == second
        assert QueueMessage.objects.count() == 1

    def test_a_start_with_limits(self, shell: Shell, stage: Stage) -> None:
        assert shell("start", "cli.asked", "--id", "one", "--deadline", "30 days", "--work-limit", "1 hour").status == 0
        stage.settle("one")
        shown = "\n".join(shell("show", "one").lines)
        assert "deadline" in shown
        assert "of 1 h" in shown
        assert "Its deadline is in " in shell("why", "one").out
        data = shell("show", "one", "-o", "json").json
        assert data["work_limit"] == 3600.0
        assert data["deadline"] is not None
        assert "cannot be read" in shell("start", "cli.asked", "--deadline", "soon").err
        assert '"deadline"' in shell("export", "one").out

    def test_a_start_with_a_rank(self, shell: Shell, stage: Stage) -> None:
        start = ("start", "cli.asked", "--share", "acme")
        shell(*start, "--id", "one", "--priority", "10 min", "--weight", "2")
        shell(*start, "--id", "two")
        data = shell("show", "one", "-o", "json").json
        assert (data["priority"], data["head_start"], data["share"], data["weight"]) == ("10 min", 600, "acme", 2.0)
        shown = " ".join(shell("show", "one").out.split())
        assert "10 min, a head start of 10 m" in shown
        assert "acme, weight 2" in shown
        assert '"share": "acme"' in shell("export", "one").out
        assert "turn in share acme: before it come 1, of its own share 1" in shell("why", "two").out
        assert "Its turn in share acme is the next" in shell("why", "one").out
        shell("start", "cli.asked", "--id", "plain")
        assert "Before it come runs with a head start" in shell("why", "plain").out
        stage.settle("one")
        assert "turn in share" not in shell("why", "one").out
        assert "no priority is named" in shell("start", "cli.asked", "--priority", "urgent").err
        assert "needs share" in shell("start", "cli.asked", "--weight", "2").err

    def test_a_start_with_a_key(self, shell: Shell, stage: Stage) -> None:
        start = ("start", "cli.asked", "--key", "k")
        assert shell(*start, "--id", "one").lines == ["one"]
        assert shell(*start).lines == ["one"]
        refused = shell(*start, "--if-open", "error")
        assert (refused.status, 'has the key "k"' in refused.err) == (1, True)
        assert "k: held by this run" in shell("show", "one").out
        assert shell("show", "one", "-o", "json").json["key"] == "k"
        assert '"key": "k"' in shell("export", "one").out
        assert shell(*start, "--id", "two", "--if-open", "replace").lines == ["two"]
        assert [state(each) for each in ("one", "two")] == ["cancelled", "pending"]
        assert shell(*start, "--send", "question", "--body", "7").lines == ["two"]
        assert QueueMessage.objects.get(run_id="two").queue == "question"

    def test_a_start_that_a_rate_refuses(self, shell: Shell, settings: Any) -> None:
        settings.DURABLE = {**settings.DURABLE, "LIMITS": {"cli-starts": {"rate": "1/hour"}}}
        start = ("start", "cli.asked", "--rate", "cli-starts/acme", "--when-full", "drop")
        assert shell(*start, "--id", "one").lines == ["one"]
        refused = shell(*start, "--id", "two")
        assert (refused.status, 'limit "cli-starts/acme" has no room before' in refused.err) == (1, True)
        told = shell("why", "two")
        assert (told.status, "limit cli-starts/acme refused a start of cli.asked" in told.err) == (1, True)
        assert "1, last" in shell("rates").out
        [key] = shell("rates", "-o", "json").json["keys"]
        assert (key["refused"], key["refused_workflow"]) == (1, "cli.asked")
        assert "needs when_full" in shell("start", "cli.asked", "--rate", "cli-starts").err
        assert "there is no run" in shell("why", "three").err

    def test_a_start_with_a_debounce(self, shell: Shell) -> None:
        how = ("--key", "k", "--debounce", "1 hour", "--at-most", "2 hours")
        assert shell("start", "cli.echo", "1", *how, "--id", "one").lines == ["one"]
        assert shell("start", "cli.echo", "2", *how).lines == ["one"]
        assert "1 later start was merged into this one" in shell("show", "one").out
        assert shell("start", "cli.echo", "1", "--key", "k", "--debounce", "1 hour").status == 2
        assert "leave one out" in shell("start", "cli.echo", "1", *how, "--delay", "1 hour").err
        assert shell("start", "cli.echo", "1", "--send", "q").status == 2

    def test_what_is_not_sent(self, shell: Shell, stage: Stage) -> None:
        stage.start(echo, id="one")
        for run_id in ("one", "nothing"):
            done = shell("send", run_id, "approved")
            assert (done.status, done.out) == (1, "")
            assert run_id in done.err or "completed" in done.err

    @pytest.fixture
    def answering(self, stage: Stage) -> Iterator[None]:
        """The run "one" goes on while somebody waits for its answer."""

        def pause(_seconds: float) -> None:
            stage.settle("one")

        at = replace(stage.at, poll_wait=pause)
        runtime.activate(at)
        yield
        runtime.deactivate(at)

    @pytest.mark.usefixtures("answering")
    def test_ask(self, shell: Shell, stage: Stage) -> None:
        stage.start(asked, id="one")
        assert shell("ask", "one", "quote", '{"sku": 4}', "--timeout", "20 s").json == {"price": 8}

    @pytest.mark.usefixtures("answering")
    def test_a_question_that_is_refused(self, shell: Shell, stage: Stage) -> None:
        stage.start(refusing, id="one")
        done = shell("ask", "one", "order", "--timeout", "20 s")
        assert (done.status, done.out) == (1, "")
        assert 'run "one" refused the message: out of stock' in done.err
        assert "\x1b" not in done.err

    def test_a_question_without_an_answer(self, shell: Shell, stage: Stage) -> None:
        stage.start(asked, id="one")
        done = shell("ask", "one", "other", "--timeout", "0")
        assert (done.status, done.out) == (3, "")


class TestReplay:
    def test_as_a_new_run(self, shell: Shell, stage: Stage) -> None:
        stage.start(steps, id="one")
        done = shell("replay", "one", "b", "--yes", "--id", "two", "--reason", "once more")
        assert (done.status, done.out) == (0, "two\n")
        assert stage.settle("two").state == "completed"
        assert actions() == [("replay", "one", "done", "once more")]

    def test_in_place(self, shell: Shell, stage: Stage) -> None:
        stage.start(steps, id="one")
        assert shell("replay", "one", "b", "--in-place", "--yes", "-o", "json").json["run"] == "one"
        assert stage.settle("one").state == "completed"

    def test_a_plan_is_looked_at_and_held_to(self, shell: Shell, stage: Stage) -> None:
        stage.start(steps, id="one")
        done = shell("replay", "one", "b", "--dry-run")
        assert done.status == 0
        assert done.lines[0] == 'run one goes on from "b", as a new run'
        assert "steps that run again: 2" in done.lines
        digest = done.lines[-1].removeprefix("plan ")
        assert shell("replay", "one", "b", "--dry-run", "-o", "json").json["hash"] == digest
        assert shell("replay", "one", "b", "--dry-run", "-o", "ids").lines == ["b", "c"]
        assert Run.objects.count() == 1
        stale = shell("replay", "one", "b", "--plan", "0" * 32)
        assert (stale.status, Run.objects.count()) == (1, 1)
        assert shell("replay", "one", "b", "--plan", digest).status == 0
        assert Run.objects.count() == 2

    def test_without_a_yes_and_from_a_place_that_there_is_not_nothing_is_replayed(
        self, shell: Shell, stage: Stage
    ) -> None:
        stage.start(steps, id="one")
        assert "--yes" in (done := shell("replay", "one", "b")).err
        assert done.status == 2
        for run_id, location in (("one", "x"), ("nothing", "b")):
            done = shell("replay", run_id, location, "--yes")
            assert (done.status, done.out) == (1, "")
        assert shell("replay", "one", "b", "--in-place", "--id", "two").status == 2
        assert Run.objects.count() == 1

    @pytest.mark.parametrize(("answer", "runs"), [("yes\n", 2), ("no\n", 1)])
    def test_a_person_sees_the_plan_and_is_asked(self, shell: Shell, stage: Stage, answer: str, runs: int) -> None:
        stage.start(steps, id="one")
        done = shell("replay", "one", "b", typed=answer)
        assert "steps that run again: 2" in done.err
        assert Run.objects.count() == runs


@pytest.mark.parametrize(
    ("error", "status", "says"),
    [(OperationalError("connection refused"), 4, "connection refused"), (KeyboardInterrupt, 130, "")],
)
def test_a_database_that_is_away_and_ctrl_c_have_a_status_of_their_own(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, error: Any, status: int, says: str
) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("durable.listings.runs.list_runs", interrupted)
    done = shell("list")
    assert (done.status, done.out) == (status, "")
    assert says in done.err


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "a\x1b[2Jb"],
        ["pause", "one", "--as", "a\x1b[2Jb"],
        ["list", "--state", "a\x1b[2Jb"],
        ["list", "--a\x1b[2Jb"],
        ["list", "--cursor", "a\x1b[2Jb"],
        ["replay", "one", "a\x1b[2Jb", "--dry-run"],
        ["start", "a\x1b[2Jb"],
        ["why", "\x1b[2J"],
    ],
)
def test_no_complaint_repeats_control_characters(shell: Shell, stage: Stage, arguments: list[str]) -> None:
    stage.start(napping, id="one")
    done = shell(*arguments)
    assert done.status != 0
    assert "\x1b" not in done.out + done.err
    assert "[2J" in done.err


class TestBulk:
    def failed(self, stage: Stage, count: int) -> list[str]:
        ids = [f"order-{number}" for number in range(count)]
        for each in ids:
            stage.start(failing, "away", id=each)
        return ids

    def test_a_canary_stops_a_recovery_until_it_goes_on(self, shell: Shell, stage: Stage) -> None:
        ids = self.failed(stage, 4)
        [cause] = shell("causes", "-o", "ids").lines
        begun = shell("recover", "--cause", cause, "--canary", "2", "--within", "5 min", "--reason", "the bank is back")
        [bulk_id] = begun.lines
        assert begun.status == 0
        assert f"durable bulk {bulk_id}" in begun.err
        stage.settle(bulk_id)
        tried = [each for each in ids if state(each) == "pending"]
        assert len(tried) == 2
        for each in tried:
            stage.settle(each)
        for _ in range(3):
            get_run(bulk_id).wake(end_sleeps=True)
            stage.settle(bulk_id)
            if "Stopped" in shell("bulk", bulk_id).out:
                break
        shown = shell("bulk", bulk_id)
        assert "Stopped after the first 2: 2 of them failed again." in shown.out
        assert "that failed because of “charge · ValueError”" in shown.out
        assert f"durable go-on {bulk_id}" in shown.out
        assert sorted(shell("bulk", bulk_id, "-o", "ids").lines) == sorted(tried)
        assert f"durable go-on {bulk_id}" in shell("why", bulk_id).out
        workflows.mended.append(True)
        assert shell("go-on", bulk_id).err == "1 continued\n"
        assert stage.settle(bulk_id).state == "completed"
        assert shell("bulk", bulk_id).out.startswith("Done: 4 of 4; 2 failed again.")
        assert shell("stop-here", bulk_id).status == 1

    #: Runs are settled by a cause, and not by their ids: tests/cli/test_settling.py.
    @pytest.mark.parametrize(
        ("verb", "option"), [(v, o) for v, options in BULK_OPTIONS.items() for o in options if v != "settle"]
    )
    def test_a_bulk_has_the_options_of_its_verb(self, verb: str, option: str, shell: Shell, stage: Stage) -> None:
        stage.start(napping, id="one")
        value, is_required = {"queue": "high"}.get(option, ""), BULK_OPTIONS[verb][option].is_required
        words = [f"--{option.replace('_', '-')}", *filter(None, [value])]
        for given in [words] if is_required else [[], words]:
            [bulk_id] = shell(verb, "one", *given, "--canary", "1").lines
            found = find_bulk(bulk_id)
            assert found is not None
            assert found.order is not None
            assert found.order.options == ({option: value or True} if given else {})

    def test_a_rate(self, shell: Shell, stage: Stage) -> None:
        stage.start(napping, id="one")
        [bulk_id] = shell("pause", "one", "nowhere", "--rate", "2").lines
        stage.settle(bulk_id)
        shown = shell("bulk", bulk_id)
        assert "Done: 2 of 2; 1 refused." in shown.out
        assert "missing: 1." in shown.out

    @pytest.mark.parametrize(
        ("arguments", "status", "problem"),
        [
            (["pause", "one", "--stop-after", "2"], 2, "options of --canary"),
            (["pause", "one", "--canary", "0"], 1, "1 to 100 runs"),
            (["pause", "one", "--canary", "2", "--stop-after", "3"], 1, "after 1 to 2 failures"),
            (["pause", "one", "--rate", "0"], 1, "0.001 to 1,000 runs a second"),
            (["move", "one"], 1, "--queue"),
            (["move", "one", "--queue", "hihg", "--rate", "1"], 1, 'no worker can serve the queue "hihg"'),
            (["move", "one", "--queue", "hihg"], 1, 'no worker can serve the queue "hihg"'),
            (["bulk", "one"], 1, 'there is no bulk "one"'),
            (["go-on", "one"], 1, "not a bulk that its canary has stopped"),
        ],
    )
    def test_what_cannot_be(self, shell: Shell, stage: Stage, arguments: list[str], status: int, problem: str) -> None:
        stage.start(napping, id="one")
        done = shell(*arguments)
        assert (done.status, state("one")) == (status, "sleeping")
        assert problem in done.err


class TestReplayByHand:
    def test_the_output_of_a_step_is_given(self, shell: Shell, stage: Stage) -> None:
        stage.start(failing, id="one")
        location = "charge"
        refused = shell("replay", "one", location, "--output-of-step", '"paid"', "--yes")
        assert (refused.status, "needs a reason" in refused.err) == (1, True)
        planned = shell("replay", "one", location, "--output-of-step", '"paid"', "--dry-run")
        assert "steps that run again" not in planned.out
        done = shell("replay", "one", location, "--output-of-step", '"paid"', "--yes", "--reason", "seen in the books")
        [run_id] = done.lines
        assert stage.settle(run_id).state == "completed"
        assert "output given by hand by" in shell("show", run_id).out
        assert ("give_output", "one", "done", "seen in the books") in actions()

    def test_a_run_starts_again_with_another_argument(self, shell: Shell, stage: Stage) -> None:
        echo.using(id="one").start("hello", colour="red")
        [run_id] = shell("restart", "one", "--set", 'args=["goodbye", 2]').lines
        stage.settle(run_id)
        assert get_run(run_id).result() == [["goodbye", 2], {"colour": "red"}]
        refused = shell("restart", "one", "--set", "nothing=1")
        assert (refused.status, "no argument 'nothing'" in refused.err) == (1, True)
