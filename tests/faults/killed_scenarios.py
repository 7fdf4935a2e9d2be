"""What `tests.faults.killed_commits` drives: keyed children, a compensated map, one recovered in batches, tags, and
ends that write rows.

A scenario is called again from its beginning by each process, so each of its acts changes nothing where it was done
before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from django.apps import apps
from django.db import connection
from django.db.models import Model

from durable import Context, CriticalError, RollbackContext, RunInfo, get_run, runtime, workflow
from durable.core.children import maps
from durable.errors import ChildCancelledError, KeyConflictError
from durable.models import Cascade, Child, Entry, GroupTally, Run, RunKey, RunTag, Turn
from durable.operations import ends
from durable.store import recovery
from project.shop.models import Mail
from tests.support.stores import in_force, passed, settle

CHILDREN: Final = 3  # of a map: a batch of two and a half one


def post(key: str) -> None:
    """A row that nobody may write twice."""
    Mail.objects.create(to="cat@example.com", subject="purr", body="", idempotency_key=key)


def undo(context: RollbackContext, _output: None) -> None:
    """Note that the step is undone; a repeated call notes it again."""
    key = f"{context.run_id} undone"
    Mail.objects.get_or_create(idempotency_key=key, defaults={"to": "cat@example.com", "subject": "purr", "body": ""})


def _mended() -> None:
    if not Mail.objects.filter(idempotency_key="mended").exists():
        raise CriticalError("not mended yet")


@workflow(name="faults.keyed")
def keyed(ctx: Context, *, waits: bool) -> str:
    """Write a row, and end at once or when it is told to."""
    ctx.step("post", post, ctx.run_id, atomic=True, retry_backoff_base=0)
    if waits:
        ctx.queue.next("go")
    return ctx.run_id


@workflow(name="faults.keyed_parent")
def keyed_parent(ctx: Context, how: Any, *, waits: bool) -> str:
    """What has become of its child, whose key others have or want."""
    try:
        done: str = ctx.child("child", keyed.using(key="k", if_open=how), waits=waits)
    except KeyConflictError as error:
        return f"refused: {error.run_id}"
    except ChildCancelledError as error:
        return f"cancelled: {error.reason}"
    return done


@workflow(name="faults.bill")
def bill(ctx: Context, number: int) -> int:
    """Write a row, which a compensation undoes."""
    ctx.rollback_checkpoint("undo")
    ctx.step("post", post, ctx.run_id, atomic=True, retry_backoff_base=0, rollback=undo)
    return number


@workflow(name="faults.undone_map")
def undone_map(ctx: Context) -> None:
    """Fail after a map, whose children are compensated then."""
    ctx.rollback_checkpoint("undo")
    ctx.map("bills", bill.using(rollback=True), [(number,) for number in range(CHILDREN)], at_once=2)
    raise CriticalError("undo all")


@workflow(name="faults.fragile_bill")
def fragile_bill(ctx: Context, number: int) -> int:
    """Fail until it is mended, then write a row."""
    ctx.step("look", _mended)
    ctx.step("post", post, ctx.run_id, atomic=True, retry_backoff_base=0)
    return number


@workflow(name="faults.recovered_map")
def recovered_map(ctx: Context) -> int:
    """The sum of the children's outputs; fail with the first that fails."""
    return sum(ctx.map("bills", fragile_bill, [(number,) for number in range(CHILDREN)]).outputs)


@workflow(name="faults.tagging")
def tagging(ctx: Context) -> None:
    """Tag the run before and after its operations, and its children."""
    ctx.tag(stage="new")
    ctx.step("look", str)
    ctx.tag(stage="posted", sum=3)
    ctx.child("child", keyed.using(tags={"part": 1}), waits=False)
    ctx.map("bills", bill.using(tags={"part": 2}), [(1,), (2,)])
    ctx.tag(stage="done")


def note_end(run: RunInfo) -> None:
    """A row for each end, which nobody may write twice, and another run: a process may die after its start."""
    post(f"{run.id} {run.state}")
    keyed.using(id=f"after {run.id}").start(waits=False)


@workflow(name="faults.noted_child", on_end=note_end)
def noted_child(ctx: Context) -> str:
    """Wait until it is told to go on, or cancelled with its parent."""
    ctx.queue.next("go")
    return ctx.run_id


@workflow(name="faults.noted", on_end=note_end)
def noted(ctx: Context, outcome: str) -> str:
    """Leave a child behind, and end in one way or another."""
    child = ctx.start_child("child", noted_child)
    ctx.step("post", post, ctx.run_id, atomic=True, retry_backoff_base=0)
    if outcome == "fails":
        raise CriticalError("an end too")
    if outcome == "waits":
        child.result("end", timeout="1 day")
    return outcome


# -- the scenarios


def keyed_family() -> None:
    """Take, refuse, hand on and free a key.

    It is handed to the child that replaces its run, and to that child's next generation.
    """
    keyed.using(id="first", key="k").start(waits=True)
    settle()
    keyed_parent.using(id="refused").start("error", waits=False)
    settle()
    replacing = keyed_parent.using(id="replacing").start("replace", waits=True)
    settle()
    if not Child.objects.filter(parent="replacing", is_dropped=True).exists():
        replacing.replay("child", in_place=True)
    settle()
    get_run("replacing:child~1").send("go", id="go")
    settle()
    keyed_parent.using(id="after").start("error", waits=False)
    settle()


def compensated_map() -> None:
    """A parent fails after its map."""
    undone_map.using(id="undone").start()
    settle()


def recovered_map_in_batches() -> None:
    """All children of a map fail, and the recovery of their parent recovers them."""
    at, run = runtime.current(), recovered_map.using(id="recovered").start()
    if not Mail.objects.filter(idempotency_key="mended").exists():
        if Child.objects.count() < CHILDREN:
            passed(at, run.id)
        for child in Run.objects.open().filter(parent="recovered").order_by("created_at", "pk"):
            passed(at, child.pk)  # before the parent stops the others
        settle()
    defaults = {"to": "cat@example.com", "subject": "purr", "body": ""}
    Mail.objects.get_or_create(idempotency_key="mended", defaults=defaults)
    if run.state == "failed":
        run.recover()
    settle()


def tagged_family() -> None:
    """A run with tags tags itself and its children, is replayed in place once, and gets to its end again."""
    run = tagging.using(id="tagged", tags={"tenant": "acme"}).start()
    settle()
    if not Run.objects.get(pk=run.id).generations:
        run.replay("look", in_place=True)
    settle()


def noted_ends() -> None:
    """Runs end in each way, and their children with them or before."""
    ends.declare(runtime.current().store)
    for outcome in ("returns", "fails", "waits", "waits cancelled"):
        noted.using(id=outcome).start(outcome.split()[0])
    settle()
    get_run("waits:child").send("go", id="go")
    if get_run("waits cancelled").state == "sleeping":
        get_run("waits cancelled").cancel(reason="enough")
    settle()


def _driven(drive: Callable[[], None]) -> Callable[[], None]:
    def driven() -> None:
        maps._BATCH = recovery._AT_ONCE = 2  # type: ignore[misc]  # so that a few children make several batches
        with in_force():
            drive()

    return driven


SCENARIOS: Final = {
    "keys": _driven(keyed_family),
    "compensation": _driven(compensated_map),
    "recovery": _driven(recovered_map_in_batches),
    "tags": _driven(tagged_family),
    "ends": _driven(noted_ends),
}


def prepare() -> None:
    """Empty the tables."""
    models: list[type[Model]] = [*apps.get_app_config("durable").get_models(), Mail]
    tables = [model._meta.db_table for model in models]
    with connection.cursor() as cursor:
        cursor.execute(f"TRUNCATE {', '.join(tables)} CASCADE")


def situation() -> str:
    """Return how far the runs are; each commit that has an effect leads to another situation.

    It covers what `found` returns, and is one statement: each process asks for it after each of its commits.
    """
    tables = ", ".join(
        f"(SELECT string_agg(each::text, ';' ORDER BY each::text) FROM ({rows}) AS each)" for rows in _SITUATION
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT md5(ROW({tables})::text)")
        [(answer,)] = cursor.fetchall()
    return str(answer)


_SITUATION: Final = (
    "SELECT id, state, output, request_reason, pending_request, waiting_for, state_after_rollback FROM durable_run",
    f"SELECT idempotency_key FROM {Mail._meta.db_table}",
    "SELECT run_id, location, status FROM durable_entry AS e LEFT JOIN durable_entrymetadata AS m ON m.entry_id = e.id",
    "SELECT run_id, generation, is_dropped FROM durable_child",
    "SELECT run_id FROM durable_runkey WHERE is_open",
    "SELECT completed, failed, cancelled, waiting FROM durable_grouptally",
    "SELECT run_id, name, value FROM durable_runtag",
    "SELECT count(*) FROM durable_cascade",
    "SELECT count(*) FROM durable_turn",
)


def found() -> dict[str, Any]:
    """Return what the database says of the runs, without its counters and moments."""
    return {
        "runs": [
            list(each) for each in Run.objects.order_by("pk").values_list("pk", "state", "output", "request_reason")
        ],
        "written": sorted(Mail.objects.values_list("idempotency_key", flat=True)),
        "entries": sorted([*each] for each in Entry.objects.values_list("run", "location", "metadata__status")),
        "generations": sorted([*each] for each in Child.objects.values_list("run", "generation", "is_dropped")),
        "open keys": sorted(RunKey.objects.filter(is_open=True).values_list("run", flat=True)),
        "counts": sorted(
            [*each] for each in GroupTally.objects.values_list("completed", "failed", "cancelled", "waiting")
        ),
        "tags": sorted([*each] for each in RunTag.objects.values_list("run", "name", "value")),
        "left": [Cascade.objects.count(), Turn.objects.count()],
    }
