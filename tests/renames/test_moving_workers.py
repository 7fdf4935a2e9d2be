"""A migration that moves classes, with Django's own commands, and with old and new workers beside each other."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.utils import timezone

from durable.codec import JsonCodec
from durable.core.ids import new_id
from durable.core.records import RunRecord
from durable.models import Entry, MovedName, Run
from durable.notifier import notify
from tests.e2e.workers import Workers
from tests.faults.passing import production_store
from tests.renames.moving import PACKAGE, SHAPES
from tests.support.processes import Program
from tests.support.waiting import eventually, wait_until_ended

pytestmark = pytest.mark.slow

SETTINGS = "tests.renames.moving_settings"

WORKFLOWS = """
from pathlib import Path
from durable import Break, Continue, workflow
from {package}.{home} import DeclinedError, Order, Size, refund

@workflow(name="moving.order")
def process_order(ctx, directory):
    ctx.rollback_checkpoint("begin")
    ctx.step("charge", lambda: (directory, Order(7)), rollback=refund)

    def look(order):
        assert type(order) is Order, order
        with (Path(directory) / "log").open("a") as lines:
            lines.write(f"{{ctx.run_id}} {home} {{order.number}}\\n")
        is_over = (Path(directory) / "stop").exists()
        return (is_over, Order(order.number + 1, ({{"size": [Size.BIG]}}, order.lines[:1], Order.Line("a"))))

    def once(inner, order):
        is_over, order = inner.step("look", look, order)
        inner.sleep("rest", 0.3)
        return Break(order) if is_over else Continue(order)

    ctx.loop("orders", once, Order(1))

    def decline():
        raise DeclinedError("no")

    try:
        ctx.step("decline", decline)
    except DeclinedError:
        pass
    ctx.step("close", decline)
"""

REFUND = """
def refund(rollback, output):
    directory, order = output
    assert type(order) is Order, order
    with (__import__("pathlib").Path(directory) / "refunds").open("a") as lines:
        lines.write(f"{rollback.run_id}\\n")
"""

MIGRATION = """
from pathlib import Path
import time
from django.db import migrations
from durable.migrations import MoveClass, MoveHandler

def rest(apps, schema_editor):
    here = Path(__file__).parent
    (here / "resting").touch()
    while (here / "hold").exists():
        time.sleep(0.05)

class Migration(migrations.Migration):
    atomic = {atomic}
    dependencies = [("durable", "0002_routines")]
    operations = [
        MoveClass("moving_shop.models.Order", "moving_shop.orders.Order"),
        MoveClass("moving_shop.models.Size", "moving_shop.orders.Size"),
        migrations.RunPython(rest, migrations.RunPython.noop),
        MoveClass("moving_shop.models.DeclinedError", "moving_shop.orders.DeclinedError"),
        MoveHandler("moving_shop.models.refund", "moving_shop.orders.refund"),
    ]
"""


def version(path: Path, home: str, *, atomic: bool = False) -> Path:
    """Write the app's code with its classes in this module; with a migration, if they have moved."""
    package = path / home / PACKAGE
    (package / "migrations").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "migrations" / "__init__.py").touch()
    (package / f"{home}.py").write_text(SHAPES + REFUND)
    (package / "workflows.py").write_text(WORKFLOWS.format(package=PACKAGE, home=home))
    if home == "orders":
        (package / "migrations" / "0001_move.py").write_text(MIGRATION.format(atomic=atomic))
    return path / home


Environments = tuple[dict[str, str], dict[str, str]]


@pytest.fixture(params=[False, True], ids=["not atomic", "atomic"])
def atomic(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def environments(path: Path, given: dict[str, str], *, atomic: bool = False) -> Environments:
    """The environments of processes with the old and with the new code."""
    made = []
    for home in ("models", "orders"):
        code = version(path, home, atomic=atomic)
        known = f"{given['PYTHONPATH']}:{code}"  # behind the directory with which forked children begin
        made.append({**given, "DJANGO_SETTINGS_MODULE": SETTINGS, "PYTHONPATH": known})
    return made[0], made[1]


@pytest.fixture(autouse=True)
def no_migration_left(transactional_db: None) -> Iterator[None]:
    yield
    MigrationRecorder(connection).migration_qs.filter(app=PACKAGE).delete()


def run_program(*arguments: str, environment: dict[str, str]) -> tuple[int, str]:
    program = Program(*arguments, environment=environment)
    status = program.wait()
    program.close()
    return status, "\n".join(program.lines)


def start(count: int, directory: Path) -> None:
    now = timezone.now()
    text = JsonCodec().encode({"args": [str(directory)], "kwargs": {}})
    production_store().create(
        [
            RunRecord(id=new_id(), workflow="moving.order", queue="default", input=text, created_at=now, wake_at=now)
            for _ in range(count)
        ]
    )
    notify.notify("default")


def begun_run(environment: dict[str, str], directory: Path) -> str:
    """Return the id of a run that a worker of old code has begun and left."""
    with Workers(1, environment, directory / "output", settings=SETTINGS):
        start(1, directory)
        eventually((directory / "log").exists)
        eventually(Run.objects.filter(state="sleeping").exists)
    return Run.objects.get().id


def test_old_and_new_workers_pass_the_same_runs(child_environment: dict[str, str], tmp_path: Path) -> None:
    old, new = environments(tmp_path, child_environment)
    log, output = tmp_path / "log", tmp_path / "output"

    def looked(home: str) -> int:
        lines = log.read_text().splitlines() if log.exists() else []
        return sum(each.split()[1] == home for each in lines)

    with Workers(1, old, output, settings=SETTINGS):
        start(3, tmp_path)
        eventually(lambda: looked("models") > 3)
        recorded = dict(Entry.objects.filter(kind="step", location="charge").values_list("id", "output"))
        status, lines = run_program("migrate", PACKAGE, "--skip-checks", environment=new)
        assert status == 0, lines
        with Workers(1, new, output, settings=SETTINGS):
            start(3, tmp_path)  # whichever code begins them
            eventually(lambda: looked("orders") > 3)
            for _ in range(2):  # each goes on with what the other one has recorded
                more = looked("models") + 2, looked("orders") + 2
                eventually(lambda more=more: looked("models") > more[0] and looked("orders") > more[1])  # type: ignore[misc]  # a lambda's default
            (tmp_path / "stop").touch()
            wait_until_ended(output)
    assert len(recorded) >= 3
    assert dict(Entry.objects.filter(pk__in=recorded).values_list("id", "output")) == recorded
    assert set(Run.objects.values_list("state", flat=True)) == {"failed"}
    assert {str(each.error.type) for each in Run.objects.all() if each.error} == {"DeclinedError"}
    assert sorted((tmp_path / "refunds").read_text().split()) == sorted(Run.objects.values_list("id", flat=True))
    by_run: dict[str, set[str]] = {}
    for line in log.read_text().splitlines():
        by_run.setdefault(line.split()[0], set()).add(line.split()[1])
    assert any(len(each) == 2 for each in by_run.values())
    said = output.read_text()
    assert "cannot be read" not in said
    assert "does not fit" not in said
    assert "diverge" not in said


def test_a_migration_that_was_killed_is_applied_again(
    child_environment: dict[str, str], tmp_path: Path, atomic: bool
) -> None:
    old, new = environments(tmp_path, child_environment, atomic=atomic)
    begun_run(old, tmp_path)
    here = tmp_path / "orders" / PACKAGE / "migrations"
    (here / "hold").touch()
    first = Program("migrate", PACKAGE, "--skip-checks", environment=new)
    try:
        eventually((here / "resting").exists)
        assert MovedName.objects.count() == (0 if atomic else 2)
    finally:
        first.end(signal.SIGKILL)
        first.close()
    (here / "hold").unlink()
    status, lines = run_program("migrate", PACKAGE, "--skip-checks", environment=new)
    assert status == 0, lines
    assert list(MovedName.objects.order_by("id").values_list("new", flat=True)) == [
        f"moving_shop.orders:{each}" for each in ("Order", "Size", "DeclinedError", "refund")
    ]
    for _ in range(2):
        assert run_program("migrate", PACKAGE, "zero", "--skip-checks", environment=new)[0] == 0
        assert MovedName.objects.count() == 4
        assert run_program("migrate", PACKAGE, "--skip-checks", environment=new)[0] == 0
        assert MovedName.objects.count() == 4


def test_the_gate_in_processes_before_and_after_the_migration(
    child_environment: dict[str, str], tmp_path: Path
) -> None:
    old, new = environments(tmp_path, child_environment)
    run_id = begun_run(old, tmp_path)
    migration = tmp_path / "orders" / PACKAGE / "migrations" / "0001_move.py"
    text = migration.read_text()
    file = tmp_path / "h.jsonl"
    status, exported = run_program("durable", "export", run_id, "--history", environment=old)
    assert status == 0, exported
    file.write_text(exported)
    gates = [
        ("--open", "--jobs", "2"),
        ("--open",),
        ("--from", str(file)),
        ("--from", str(file), str(file), "--jobs", "2"),
    ]

    def statuses(environment: dict[str, str]) -> list[int]:
        return [run_program("durable", "replay-check", *each, environment=environment)[0] for each in gates]

    assert statuses(new) == [0, 0, 0, 0]  # the migration is not applied
    assert not MovedName.objects.exists()
    migration.unlink()
    status, lines = run_program("durable", "replay-check", "--open", "--jobs", "2", environment=new)
    assert (status, "MoveClass" in lines) == (1, True)
    migration.write_text(text)
    assert run_program("migrate", PACKAGE, "--skip-checks", environment=new)[0] == 0
    assert run_program("durable", "replay-check", "--open", "--jobs", "2", environment=new)[0] == 0
    assert run_program("durable", "replay-check", "--open", environment=old)[0] == 0
