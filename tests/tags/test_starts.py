"""Tags that a start gives: what is stored, when it is seen, which runs are found; and several starts at once."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any, Final

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from durable import Context, get_run, workflow
from durable.core.tags import TagValue
from durable.errors import RunNotFoundError
from durable.models import Run, RunTag
from durable.operations import holds
from durable.operations.prune import prune
from durable.retention import Policy
from durable.runtime import Runtime
from durable.testing import Harness
from tests.support.stores import passed, settle
from tests.support.waiting import at_once, patiently

ACME: Final[dict[str, TagValue]] = {"tenant": "acme", "order": 42}


@workflow(name="tests.tags.one")
def one(ctx: Context, number: int = 0) -> int:
    return ctx.step("one", lambda: number)


@workflow(name="tests.tags.family")
def family(ctx: Context) -> None:
    ctx.child("tagged", one.using(tags={"part": "a"}), 1)
    ctx.child("plain", one, 2)
    ctx.map("all", one.using(tags={"part": "b"}), [(3,), (4,)], at_once=1)


def found(**tags: Any) -> list[str]:
    return list(Run.objects.tagged(**tags).values_list("id", flat=True))


def test_runs_are_found_by_tags(at: Runtime) -> None:
    both = one.using(id="both", tags=ACME).start()
    one.using(id="other", tags={"tenant": "other", "order": 42}).start()
    one.using(id="plain").start()
    assert found(tenant="acme") == ["both"]
    assert found(order=42) == found(order="42") == found(order=Decimal("42.0")) == ["other", "both"]
    assert found(order=42, tenant="acme") == ["both"]
    assert list(Run.objects.tagged(order=42).tagged(tenant="acme")) == [Run.objects.get(pk="both")]
    assert found(order=43) == found(tenant="acme", order=43) == found(nothing="acme") == []
    assert both.tags == {"order": "42", "tenant": "acme"}
    assert get_run("plain").tags == {}


def test_values_of_all_types_are_found(at: Runtime) -> None:
    moment = datetime(2026, 11, 24, 9, 30, tzinfo=UTC)
    tags: dict[str, TagValue] = {
        "n": 0.5,
        "d": Decimal("1E+2"),
        "b": True,
        "m": moment,
        "day": date(2026, 11, 24),
        "e": "👩‍🚀",
        "z": "\x00\ud800",
    }
    run = one.using(tags=tags).start()
    for name, value in tags.items():
        assert found(**{name: value}) == [run.id], name
    assert found(n="0.5", d=100, b="true", m="2026-11-24T09:30:00Z", day="2026-11-24") == [run.id]
    assert run.tags["z"] == "\x00\ud800"


@pytest.mark.parametrize("letter", ["x", "🎉", "\x00", "\ud800"])
def test_the_longest_tag_fits(at: Runtime, letter: str) -> None:
    run = one.using(id="🎉" * 200, tags={"🎉" * 200: letter * 200}).start()
    assert found(**{"🎉" * 200: letter * 200}) == [run.id]


def test_the_newest_come_first_and_the_result_is_a_queryset_as_any(at: Runtime) -> None:
    one.using(tags={"t": 1}).start_many([(number,) for number in range(5)], ids=[f"r{number}" for number in range(5)])
    passed(at, "r2")
    tagged = Run.objects.tagged(t=1)
    assert [run.id for run in tagged] == [run.id for run in Run.objects.newest_first()]
    assert [run.id for run in tagged.newest_first()] == [run.id for run in tagged]
    assert [run.id for run in tagged.reverse()] == [run.id for run in tagged][::-1]
    assert tagged.completed().get().id == "r2"
    assert tagged.open().count() == 4
    assert tagged.filter(id__in=["r1", "r7"]).exists()
    assert tagged.first() == tagged[0]
    assert Run.objects.filter(id__in=tagged.values("id")).count() == 5
    assert Run.objects.exclude(id__in=tagged.values("id")).count() == 0
    assert tagged.in_bulk(["r3"]).keys() == {"r3"}
    assert list(tagged.tagged(t=2)) == []
    assert tagged.filter(id__in=["r0", "r1"]).update(worker="w") == 2
    assert tagged.exclude(worker="w").count() == 3
    assert {each.id for each in tagged.filter(worker="w") | tagged.filter(id="r4")} == {"r0", "r1", "r4"}
    tagged.filter(worker="w").delete()
    assert tagged.all().count() == 3


def test_querysets_with_other_tags_are_combined(at: Runtime) -> None:
    for number in range(6):
        tags: dict[str, TagValue] = {"tenant": "abc"[number % 3], "order": number}
        one.using(id=f"r{number}", tags=tags).start()
    a, b = (Run.objects.tagged(tenant=each) for each in "ab")
    last = Run.objects.filter(id__gte="r3")

    def ids(runs: Any) -> list[str]:
        return [run.id for run in runs]

    assert ids(a | b) == ["r4", "r3", "r1", "r0"]
    assert ids((a | b).tagged(order=1)) == ids(a.tagged(order=0) | b.tagged(order=1))[:1] == ["r1"]
    assert ids(a | Run.objects.tagged(order=5) | Run.objects.tagged(order=1)) == ["r5", "r3", "r1", "r0"]
    assert ids(a | last) == ids(last | a) == ["r5", "r4", "r3", "r0"]
    assert ids(a & b) == []
    assert ids(a & Run.objects.tagged(order=3)) == ["r3"]
    assert ids(a & last) == ids(last & a) == ["r3"]
    assert ids(last & last.newest_first()) == ["r5", "r4", "r3"]
    assert ids(a ^ last) == ids(last ^ a) == ["r5", "r4", "r0"]
    assert ids(a[:1] | b) == ["r4", "r3", "r1"]
    assert (a | b).open().count() == (a | b).update(worker="w") == 4
    assert ids(a.order_by().union(b.order_by()).order_by("id")) == ["r0", "r1", "r3", "r4"]
    assert ids(Run.objects.none() | a) == ids(a | Run.objects.none()) == ["r3", "r0"]
    assert ids(Run.objects.none() & a) == ids(a & Run.objects.none()) == []


def test_tagged_needs_a_tag(at: Runtime) -> None:
    with pytest.raises(TypeError, match="at least one tag"):
        Run.objects.tagged()
    with pytest.raises(ValueError, match="leave the tag out"):
        Run.objects.tagged(tenant="")
    with pytest.raises(TypeError, match="not NoneType"):
        Run.objects.tagged(tenant=None)  # type: ignore[arg-type]


def test_a_tag_is_seen_at_once_and_goes_with_a_rollback(at: Runtime) -> None:
    class Undone(Exception):
        pass

    def start_and_fail() -> None:
        with transaction.atomic():
            run = one.using(tags=ACME).start()
            assert found(tenant="acme") == [run.id]
            assert run.tags == {"order": "42", "tenant": "acme"}
            raise Undone

    with pytest.raises(Undone):
        start_and_fail()
    assert not RunTag.objects.exists()
    assert not Run.objects.exists()


def test_however_a_run_is_started_it_has_its_tags(at: Runtime) -> None:
    how = one.using(tags=ACME)
    started = [
        how.start(),
        how.using(key="a").start(),
        how.using(key="b").start_or_send("x", 1),
        how.using(deadline="1 hour").start(),
        how.using(priority="1 min", share="s").start(),
        *how.start_many([(1,), (2,)]),
        how.using(key="c", debounce="1 min", at_most="5 min").start(),
    ]
    assert sorted(found(tenant="acme", order=42)) == sorted(run.id for run in started)
    assert how.using(queue="high").start().tags == how.start().tags
    assert how.using(tags={"other": 1}).start().tags == {"other": "1"}
    assert how.using(tags={}).start().tags == {}


def test_a_start_that_finds_a_run_leaves_its_tags(at: Runtime) -> None:
    one.using(id="a", tags=ACME).start()
    one.using(id="a", tags={"tenant": "other"}).start()
    keyed = one.using(key="k", tags=ACME).start()
    again = one.using(key="k", tags={"tenant": "other"}).start()
    assert again.id == keyed.id
    assert found(tenant="other") == []
    assert get_run("a").tags == keyed.tags == {"order": "42", "tenant": "acme"}


def test_a_held_start_has_its_tags(at: Runtime) -> None:
    holds.hold_starts(one.name)
    run = one.using(tags=ACME).start()
    assert (run.state, run.tags) == ("paused", {"order": "42", "tenant": "acme"})


def test_children_have_their_own_tags_alone(at: Runtime) -> None:
    parent = family.using(tags=ACME).start()
    settle()
    assert parent.state == "completed"
    assert found(tenant="acme") == [parent.id]
    inputs = {get_run(each).output for each in found(part="a")}, {get_run(each).output for each in found(part="b")}
    assert inputs == ({1}, {3, 4})
    assert RunTag.objects.count() == 5


def test_a_restart_has_the_tags_of_the_start(at: Runtime) -> None:
    run = one.using(tags=ACME).start()
    new = run.restart()
    assert new.tags == run.tags
    assert found(tenant="acme") == [new.id, run.id]


def test_a_replay_as_a_new_run_has_the_tags(at: Runtime) -> None:
    run = one.using(tags=ACME).start()
    passed(at, run.id)
    new = run.replay("one")
    assert new.id != run.id
    assert new.tags == run.tags


def test_a_pruned_run_leaves_no_tags(at: Runtime) -> None:
    gone, stays = (one.using(tags=ACME).start() for _ in range(2))
    passed(at, gone.id)
    Run.objects.filter(pk=gone.id).update(finished_at=gone.info().created_at - timedelta(days=2))
    prune(Policy.of(timedelta(days=1)))
    assert not Run.objects.filter(pk=gone.id).exists()
    assert set(RunTag.objects.values_list("run_id", flat=True)) == {stays.id}
    Run.objects.filter(pk=stays.id).delete()
    assert not RunTag.objects.exists()


def test_a_row_that_a_deleted_run_has_left_stops_no_start(at: Runtime) -> None:
    before = datetime(2020, 1, 1, tzinfo=UTC)
    RunTag.objects.create(run_id="again", name="tenant", value="old", start_value="old", created_at=before)
    run = one.using(id="again", tags=ACME).start()
    assert run.tags == {"order": "42", "tenant": "acme"}
    assert found(tenant="acme", order=42) == ["again"]
    assert RunTag.objects.get(run="again", name="tenant").created_at == run.info().created_at


@pytest.mark.slow
def test_a_thousand_starts_write_their_tags_in_a_few_statements(at: Runtime) -> None:
    how = one.using(tags={f"t{number}": number for number in range(8)})
    with CaptureQueriesContext(connection) as few:
        one.start_many([(number,) for number in range(1_000)])
    with CaptureQueriesContext(connection) as many:
        how.start_many([(number,) for number in range(1_000)])
    assert RunTag.objects.count() == 8_000
    on_tags = [each for each in many.captured_queries if "durable_runtag" in each["sql"]]
    # SQLite takes 999 values in a statement where it is older, 32,766 else
    assert len(on_tags) <= (8 if connection.vendor == "postgresql" else 8_000 * 5 // 999 + 1)
    assert len(many) - len(on_tags) <= len(few) + 6


def test_a_harness_has_tags() -> None:
    with Harness() as h:
        run = family.using(tags=ACME).start()
        h.settle()
        assert run.tags == {"order": "42", "tenant": "acme"}
        tags = [child.tags for child in run.children()]
        assert sorted(map(str, tags)) == ["{'part': 'a'}", "{'part': 'b'}", "{'part': 'b'}", "{}"]
        new = run.restart()
        assert new.tags == run.tags


def test_a_run_that_is_not_there_has_no_tags(at: Runtime) -> None:
    with pytest.raises(RunNotFoundError):
        _ = get_run("nobody").tags


@pytest.mark.django_db
def test_tags_in_memory_go_with_a_rollback_of_the_database() -> None:
    with Harness() as h:
        run = one.using(id="before", tags=ACME).start()
        with transaction.atomic():
            gone = one.using(id="gone", tags=ACME).start()
            assert gone.tags == run.tags
            transaction.set_rollback(True)
        with pytest.raises(RunNotFoundError):
            _ = gone.tags
        again = one.using(id="gone", tags={"tenant": "other"}).start()
        assert (again.is_new, again.tags) == (True, {"tenant": "other"})
        h.settle()
        assert run.tags == {"order": "42", "tenant": "acme"}


# -- starts of one run from several threads at once: it has the tags of the start that has made it, and no others


ROUNDS = 10


@workflow(name="tests.tags_at_once.job")
def job(ctx: Context) -> None:
    ctx.queue.next("add")


@pytest.mark.django_db(transaction=True)
@pytest.mark.redis
@pytest.mark.parametrize("how", ["id", "key", "message", "many"])
def test_a_run_has_the_tags_of_the_start_that_has_made_it(how: str) -> None:
    made: dict[str, int] = {}
    lock = threading.Lock()

    def start(number: int) -> None:
        for each in range(ROUNDS):
            tags: dict[str, TagValue] = {"by": number, f"only-{number}": each}
            patiently(partial(note, number, each, job.using(tags=tags)))

    def note(number: int, each: int, tagged: Any) -> None:
        if how == "id":
            handles = [tagged.using(id=f"r{each}").start()]
        elif how == "key":
            handles = [tagged.using(key=f"k{each}").start()]
        elif how == "message":
            handles = [tagged.using(key=f"k{each}").start_or_send("add", number)]
        else:
            handles = tagged.start_many([(), (), ()], ids=[f"r{each}", f"r{each}", f"s{each}"])
        with lock:
            made.update({handle.id: number for handle in handles if handle.is_new})

    at_once(start)
    assert len(made) == Run.objects.count() == (2 * ROUNDS if how == "many" else ROUNDS)
    for run_id, number in made.items():
        tags = get_run(run_id).tags
        assert tags.keys() == {"by", f"only-{number}"}
        assert tags["by"] == str(number)
        assert run_id in Run.objects.tagged(by=number).values_list("id", flat=True)
    assert RunTag.objects.count() == 2 * len(made)
