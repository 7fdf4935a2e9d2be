"""`durable import`: runs of files rest in this database until an operator says otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.contrib.auth.models import User
from django.test import Client
from django.test.utils import override_settings
from django.urls import reverse
from django.utils import timezone

from durable import Break, Context, Continue, CriticalError, get_run, runtime, workflow
from durable.core import registry
from durable.models import Child, Entry, Link, OperatorAction, QueueMessage, Run, RunKey, RunLimit
from tests.cli.conftest import Shell, Stage
from tests.support.stores import in_force, settle

NAME = "imports.order"


def order(ctx: Context, what: str) -> str:
    ctx.step("pay 💶/now", len, what)
    if what == "fail":
        raise CriticalError("no")
    if what == "end":
        return "ended"
    body = ctx.queue.next("approved", names=["approved"]).body
    ctx.sleep("wait", "1 day")
    return str(body)


@pytest.fixture
def made(stage: Stage) -> Iterator[Any]:
    found = workflow(name=NAME)(order)
    yield found
    registry.registry.unregister(found)


@pytest.fixture
def file(shell: Shell, stage: Stage, made: Any, tmp_path: Path) -> Path:
    """A file with a run that sleeps, one that has ended and one that has failed; the database has none of them."""
    made.using(id="open", deadline="3 days", key="the key").start("abc")
    stage.settle("open")
    get_run("open").send("approved", "yes")
    stage.settle("open")
    for name in ("end", "fail"):
        stage.start(made, name, id=name)
    done = shell("export", "open", "end", "fail", "--history")
    assert done.status == 0
    Run.objects.all().delete()
    OperatorAction.objects.all().delete()
    path = tmp_path / "runs.jsonl"
    path.write_text(done.out, encoding="utf-8")
    return path


def test_open_runs_are_paused_and_ended_ones_have_ended(shell: Shell, file: Path) -> None:
    with in_force() as at:
        done = shell("import", str(file), "--reason", "a look")
        assert (done.status, done.lines, done.err) == (0, ["open", "end", "fail"], "")
        assert {each.id: each.state for each in Run.objects.all()} == {
            "open": "paused",
            "end": "completed",
            "fail": "failed",
        }
        run = at.store.get("open")
        assert run is not None
        assert run.summary == "imported: the run was open elsewhere (sleeping)"
        assert (run.wake_at, run.lease_expires_at, run.worker, run.parent_id) == (None, None, "", None)
        assert [each.location for each in at.store.history("open")] == ["pay 💶%2Fnow", "approved", "wait"]
        assert len(at.store.messages("open")) == 1
        assert at.store.claim_run("open", now=at.now(), lease_until=at.now(), worker="w") is None
        later = replace(at, now=lambda: timezone.now() + timedelta(days=40))
        runtime.activate(later)
        try:
            assert settle() == 0  # no worker takes any of them up, ever
        finally:
            runtime.deactivate(later)
    assert not RunLimit.objects.exists()
    assert not RunKey.objects.exists()
    assert not Child.objects.exists()
    assert shell("replay-check").status == 0
    row = OperatorAction.objects.get(run_id="open")
    assert (row.action, row.outcome, row.reason, row.before, row.after) == (
        "import",
        "done",
        "a look",
        "sleeping",
        "paused",
    )
    assert row.detail.startswith("exported 20")
    assert str(file) in row.detail


def test_an_operator_can_resume_one_on_purpose(shell: Shell, stage: Stage, file: Path) -> None:
    shell("import", str(file))
    get_run("open").resume()
    stage.settle("open")
    assert Run.objects.get(pk="open").state == "sleeping"


@override_settings(DURABLE={"BASE_URL": "https://shop.example"})
def test_a_link_gets_an_address_when_the_run_goes_on(shell: Shell, stage: Stage, tmp_path: Path) -> None:
    """Until then its surfaces say that it has none: the address of the original answers the original alone."""

    @workflow(name="imports.linked")
    def linked(ctx: Context) -> Any:
        link = ctx.link("paid", timeout="30 days")
        return link.wait("answer")

    try:
        linked.using(id="linked").start()
        stage.settle("linked")
        path = tmp_path / "linked.jsonl"
        path.write_text(shell("export", "linked", "--history").out, encoding="utf-8")
        Run.objects.all().delete()
        shell("import", str(path))
        assert not Link.objects.exists()
        assert "has no address until the run goes on" in shell("show", "linked").out
        get_run("linked").resume()
        stage.settle("linked")
        [row] = Link.objects.filter(run="linked")
        assert row.used_at is None
        assert "open until" in shell("show", "linked").out
    finally:
        registry.registry.unregister(linked)


def test_other_ids(shell: Shell, stage: Stage, file: Path) -> None:
    assert shell("import", str(file)).status == 0
    done = shell("import", str(file), "--as-prefix", "look-")
    assert (done.status, done.lines, done.err) == (0, ["look-open", "look-end", "look-fail"], "")
    run = Run.objects.get(pk="look-open")
    assert (run.seed, run.began_at) == ("open", Run.objects.get(pk="open").created_at)
    assert shell("replay-check").status == 0
    received = Entry.objects.get(run="look-open", location="approved").data["received"][0]["id"]  # type: ignore[index]  # JSON
    assert QueueMessage.objects.get(run="look-open").pk == received


def test_the_same_content_is_not_imported_twice_and_another_is_refused(shell: Shell, file: Path) -> None:
    shell("import", str(file))
    count = Entry.objects.count()
    done = shell("import", str(file), "--keep-ids")
    assert (done.status, done.lines) == (0, ["open", "end", "fail"])
    assert "open was imported before, with the same content" in done.err
    assert Entry.objects.count() == count
    lines = file.read_text(encoding="utf-8").splitlines()
    changed = json.loads(lines[1])
    changed["entry"]["output"] = "9"
    file.write_text("\n".join([lines[0], json.dumps(changed), *lines[2:]]), encoding="utf-8")
    done = shell("import", str(file))
    assert (done.status, done.lines) == (1, ["end", "fail"])
    assert "open was not imported" in done.err
    assert "--as-prefix" in done.err
    assert OperatorAction.objects.get(run_id="open", outcome="conflict").action == "import"


def test_a_run_of_this_database_is_never_replaced(shell: Shell, stage: Stage, made: Any, file: Path) -> None:
    stage.start(made, "abc", id="open")
    done = shell("import", str(file))
    assert (done.status, done.lines) == (1, ["end", "fail"])
    assert Run.objects.get(pk="open").state != "paused"


def test_a_trial_stores_nothing(shell: Shell, file: Path) -> None:
    done = shell("import", str(file), "--dry-run")
    assert (done.status, done.lines) == (0, ["open", "end", "fail"])
    assert "open would be imported" in done.err
    assert not Run.objects.exists()
    assert not OperatorAction.objects.exists()


def test_it_needs_a_permission(shell: Shell, file: Path) -> None:
    User.objects.create_user("ada", is_staff=True)
    done = shell("import", str(file), "--as", "ada")
    assert (done.status, done.out) == (1, "")
    assert "durable.give_output" in done.err
    assert not Run.objects.exists()


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("run", lambda run: run.update(workflow="durable.bulk")),
        ("run", lambda run: run.update(state="completed", finished_at=None)),
        ("run", lambda run: run.update(state="dreaming")),
        ("run", lambda run: run.update(id="a/b")),
        ("run", lambda run: run.update(workflow="")),
        ("run", lambda run: run.update(workflow="\ud800")),
        ("run", lambda run: run.update(seed="x" * 201)),
        ("entry", lambda entry: entry.update(kind="dream")),
        ("entry", lambda entry: entry.update(location="x" * 1025)),
        ("entry", lambda entry: entry.update(status="dreaming")),
        ("entry", lambda entry: entry.update(attempts=-1)),
        ("message", lambda message: message.update(order=-1)),
        ("message", lambda message: message.update(received_by="")),
    ],
)
def test_what_cannot_be_stored_is_refused_whole(
    shell: Shell, file: Path, name: str, change: Callable[[dict[str, Any]], None]
) -> None:
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    change(next(each for each in lines if name in each)[name])
    file.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    done = shell("import", str(file))
    assert (done.status, done.lines) == (1, ["end", "fail"])
    assert set(Run.objects.values_list("id", flat=True)) == {"end", "fail"}


def test_values_are_written_for_this_projects_codec(shell: Shell, file: Path, tmp_path: Path) -> None:
    shell("import", str(file))
    plain = tmp_path / "plain.jsonl"
    plain.write_text(shell("export", "end", "--history", "--decrypt").out, encoding="utf-8")
    with override_settings(
        DURABLE={
            "CODEC": "durable.crypto.FernetCodec",
            "ENCRYPTION_KEYS": [Fernet.generate_key()],
            "BIND_PAYLOADS": "require",
        }
    ):
        at = runtime.production()
        runtime.activate(at)
        try:
            assert shell("import", str(plain), "--as-prefix", "secret-").status == 0
            assert '"ended"' not in str(Run.objects.get(pk="secret-end").output)
            assert get_run("secret-end").result(timeout=0) == "ended"
        finally:
            runtime.deactivate(at)


def test_the_runs_page_says_that_it_was_imported(shell: Shell, file: Path, admin_client: Client) -> None:
    shell("import", str(file))
    address = reverse("admin:durable_run_change", args=["open"])
    page = admin_client.get(address).content.decode()
    assert "Imported: the run was open elsewhere (sleeping)" in page
    assert "Resumed, it goes on here" in page
    log = admin_client.get(address, {"part": "audit"}).content.decode()
    assert "exported 20" in log
    assert file.name in log


def refund(rollback: Any, output: Any) -> None:
    CALLED.append(output)


def elsewhere(rollback: Any, output: Any) -> None:
    CALLED.append("elsewhere")


CALLED: list[Any] = []


def paying(ctx: Context, what: str) -> str:
    ctx.rollback_checkpoint("from here")
    ctx.step("pay", len, what, rollback=refund)
    ctx.step("note", len, what, rollback=elsewhere)
    return str(ctx.queue.next("approved").body)


@pytest.fixture
def paid(shell: Shell, stage: Stage, tmp_path: Path) -> Iterator[Path]:
    CALLED.clear()
    found = workflow(name="imports.paying")(paying)
    stage.start(found, "abc", id="paid")
    done = shell("export", "paid", "--history")
    Run.objects.all().delete()
    path = tmp_path / "paid.jsonl"
    path.write_text(done.out, encoding="utf-8")
    yield path
    registry.registry.unregister(found)


def test_what_the_code_names_is_called_by_a_rollback(shell: Shell, stage: Stage, paid: Path) -> None:
    done = shell("import", str(paid))
    assert (done.status, done.err) == (0, "")
    get_run("paid").cancel(rollback=True)
    stage.settle("paid")
    assert CALLED == ["elsewhere", 3]


@pytest.mark.parametrize("foreign", ["os:getcwd", f"{__name__}:elsewhere", "nowhere.at_all:run", "", "os"])
def test_what_the_code_does_not_name_at_that_step_is_left_out(
    shell: Shell, stage: Stage, paid: Path, foreign: str
) -> None:
    paid.write_text(paid.read_text().replace(f"{__name__}:refund", foreign))
    done = shell("import", str(paid))
    assert done.status == 0
    assert f'the rollback handler {foreign!a} of the step "pay" was left out' in done.err
    assert not any("note" in line for line in done.err.splitlines())
    get_run("paid").cancel(rollback=True)
    stage.settle("paid")
    assert CALLED == ["elsewhere"]
    assert get_run("paid").state == "cancelled"


def test_without_the_code_no_handler_is_imported(shell: Shell, stage: Stage, paid: Path) -> None:
    registry.registry.unregister(registry.get("imports.paying"))
    done = shell("import", str(paid))
    assert done.err.count("was left out") == 2
    assert not any("rollback" in each.data for each in Entry.objects.filter(run="paid"))
    workflow(name="imports.paying")(paying)


def forking(ctx: Context, what: str) -> str:
    ctx.rollback_checkpoint("from here")
    ctx.step("pay", len, what, rollback=refund)
    ctx.get_version("v", 2)
    ctx.join("both", {"left": lambda c: c.step("l", len, what), "right": lambda c: c.queue.next("right")})
    ctx.loop("rounds", lambda c, n: Break(n) if n else Continue(n + 1), state=0)
    ctx.queue.send("note", what)
    ctx.sleep("wait", "1 day")
    return what


SHAPES = [
    ("pay", "rollback", {"handler": 5}),
    ("pay", "rollback", "none"),
    ("both", "branches", None),
    ("both", "branches", {"left": "completed"}),
    ("both", "branches", {"left": {"status": []}}),
    ("both/right/right", "names", "right"),
    ("both/right/right", "received", [{"id": 1}]),
    ("both/right/right", "received", {}),
    ("rounds", "iteration", "many"),
    ("rounds", "state", {"n": 1}),
    ("v", "resolved", None),
    ("wait", "deadline", "soon"),
    ("wait", "state", 5),
]


@pytest.fixture
def forked(shell: Shell, stage: Stage) -> Iterator[list[dict[str, Any]]]:
    found = workflow(name="imports.forking")(forking)
    stage.start(found, "abc", id="forked")
    get_run("forked").send("right", 1)
    stage.settle("forked")
    lines = [json.loads(each) for each in shell("export", "forked", "--history").out.splitlines()]
    Run.objects.all().delete()
    yield lines
    registry.registry.unregister(found)


@pytest.mark.parametrize(("location", "name", "value"), SHAPES)
def test_data_of_another_shape_is_refused(
    shell: Shell, forked: list[dict[str, Any]], tmp_path: Path, location: str, name: str, value: Any
) -> None:
    """No page reads it: the histories, the tree and the plan of a replay expect what durable writes."""
    path = tmp_path / "forked.jsonl"
    path.write_text("\n".join(map(json.dumps, forked)))
    assert shell("import", str(path), "--dry-run").status == 0
    [entry] = [each["entry"] for each in forked if each.get("entry", {}).get("location") == location]
    assert name in entry["data"] or name == "received"
    entry["data"][name] = value
    path.write_text("\n".join(map(json.dumps, forked)))
    done = shell("import", str(path))
    assert done.status != 0
    assert f'the entry "{location}" is of another shape: its data has another "{name}"' in done.err
    del entry["data"][name]
    assert not Run.objects.exists()
