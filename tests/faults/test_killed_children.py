"""Parents, children and maps while their workers are killed: each comes to its end, and each step counts once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from django.db import connection

from durable import Handle
from durable.models import Cascade, Child, ChildGroup, GroupTally, Run, Turn
from project.shop.models import Mail
from tests.e2e.workers import Workers
from tests.faults.workflows import family, mapped, shelved, undone
from tests.support.waiting import eventually, kill_until_ended

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.postgres, pytest.mark.django_db(transaction=True)]


FAMILIES = 6
CHILDREN_OF_EACH = 4
KILLS_OF_FAMILIES = 6


def test_parents_and_children_come_through_kills(child_environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    handles: list[Handle] = [family.using(id=f"family-{each}").start(CHILDREN_OF_EACH) for each in range(FAMILIES)]
    ended = [shelved.using(id=f"shelved-{each}").start(CHILDREN_OF_EACH) for each in range(2)]
    dice = random.Random(7)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    with Workers(2, environment, log, settings="tests.faults.settings") as workers:
        kill_until_ended(workers, dice, kills=KILLS_OF_FAMILIES, log=log, when=Run.objects.ended().exists)
    expected = [f"label {each}" for each in range(CHILDREN_OF_EACH)]
    assert [handle.output for handle in handles] == [[*expected, f"mail {CHILDREN_OF_EACH}"]] * FAMILIES
    assert Child.objects.filter(parent_id="family-0").count() == CHILDREN_OF_EACH + 1
    assert {handle.state for handle in ended} == {"completed"}
    assert set(Run.objects.filter(parent__in=[each.id for each in ended]).values_list("state", flat=True)) == {
        "cancelled"
    }
    assert not Cascade.objects.exists()


def test_compensations_of_children_come_through_kills(child_environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    tops = [undone.using(id=f"undone-{each}").start(2) for each in range(3)]
    dice = random.Random(8)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    with Workers(2, environment, log, settings="tests.faults.settings") as workers:
        kill_until_ended(
            workers, dice, kills=KILLS_OF_FAMILIES, log=log, when=Run.objects.filter(state="rolling_back").exists
        )
    assert {handle.state for handle in tops} == {"failed"}
    children = Run.objects.filter(id__contains=":")
    assert set(children.values_list("state", flat=True)) == {"cancelled"}
    assert children.count() == 3 * 6
    for run_id in Run.objects.values_list("id", flat=True):
        assert Mail.objects.filter(idempotency_key__startswith=f"{run_id} ").count() == 2, run_id
    assert workers.kills


# -- maps while workers are killed: each child runs once and is counted once, and nothing is left behind


CHILDREN = 100
FAILING = CHILDREN // 10
KILLS = 8
BATCH = 500  # children that a commit starts
ENDING = 100  # of a parent that is cancelled: the others wait, so that they are open then, however fast the machine is
LOCK = 4127  # an advisory lock of the test's own


def check_counts(group_id: str) -> GroupTally:
    """Return the counts of a group whose children have ended; they equal a recount."""
    tally = GroupTally.objects.get(group_id=group_id)
    children = Child.objects.filter(member_of=group_id)
    assert tally.created == children.count()
    assert (tally.waiting, tally.running) == (0, 0)
    for state in ("completed", "failed", "cancelled"):
        assert getattr(tally, state) == children.filter(run__state=state).count(), state
    assert sorted(children.values_list("position", flat=True)) == list(
        range(
            ChildGroup.objects.get(id=group_id).position, ChildGroup.objects.get(id=group_id).position + tally.created
        )
    )
    return tally


def test_each_child_of_a_map_runs_once_through_kills(child_environment: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "workers.log"
    handles: list[Handle] = [mapped.using(id=f"map-{at_once}").start(CHILDREN, at_once) for at_once in (3, None)]
    dice = random.Random(11)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    with Workers(2, environment, log, settings="tests.faults.settings") as workers:
        for kill in range(KILLS):
            ended = CHILDREN * 2 * kill // (KILLS + 1)  # so that the kills are spread over the children, on any machine
            eventually(lambda least=ended: Run.objects.ended().count() >= least, every=0.05, seconds=400, log=log)  # type: ignore[misc]
            workers.kill_one(dice)
        eventually(lambda: not Run.objects.open().exists(), every=0.05, seconds=400, log=log)
    completed = [each for each in range(CHILDREN) if each % 10 != 3]
    assert [handle.output for handle in handles] == [[len(completed), FAILING, 0, sum(completed)]] * 2
    for handle in handles:
        tally = check_counts(f"{handle.id}:children")
        assert (tally.completed, tally.failed, tally.cancelled) == (CHILDREN - FAILING, FAILING, 0)
    posted = Mail.objects.values_list("idempotency_key", flat=True)
    assert sorted(posted) == sorted(f"{handle.id}:children:{each}" for handle in handles for each in range(CHILDREN))
    assert not Turn.objects.exists()
    assert not Cascade.objects.exists()


@contextmanager
def stopped_at_second_batch() -> Iterator[psycopg.Connection]:
    """Inside, a transaction that starts the second batch of a map's children waits for the connection's lock."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION test_wait() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN PERFORM pg_advisory_xact_lock_shared({LOCK}); RETURN NEW; END'"
        )
        cursor.execute(
            "CREATE TRIGGER test_wait BEFORE UPDATE ON durable_grouptally FOR EACH ROW "
            f"WHEN (NEW.created > {BATCH}) EXECUTE FUNCTION test_wait()"
        )
    try:
        with psycopg.connect(**connection.get_connection_params(), autocommit=True) as holder:
            holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
            yield holder
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP TRIGGER test_wait ON durable_grouptally")
            cursor.execute("DROP FUNCTION test_wait")


def _is_waited_for() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = %s AND NOT granted", [LOCK])
        return cursor.fetchone() is not None


@pytest.mark.parametrize("kill_first", [True, False])
def test_a_parent_is_cancelled_in_the_middle_of_the_start_of_its_children(
    child_environment: dict[str, str], tmp_path: Path, kill_first: bool
) -> None:
    log = tmp_path / "workers.log"
    handle = mapped.using(id="parent").start(BATCH * 4, 2, ENDING)
    dice = random.Random(12)  # not for secrets
    environment = {**child_environment, "E2E_MAX_CRASHES": "100"}
    with stopped_at_second_batch() as holder, Workers(1, environment, log, settings="tests.faults.settings") as workers:
        eventually(_is_waited_for, every=0.05, seconds=400, log=log)
        assert GroupTally.objects.get().created == BATCH
        if kill_first:
            workers.kill_one(dice)
        holder.execute("SELECT pg_advisory_unlock(%s)", [LOCK])
        handle.cancel("enough")
        if not kill_first:
            workers.kill_one(dice)
        for _ in range(3):
            workers.kill_one(dice)
        eventually(lambda: not Run.objects.open().exists(), every=0.05, seconds=400, log=log)
        eventually(lambda: not Cascade.objects.exists(), every=0.05, seconds=400, log=log)
    assert handle.state == "cancelled"
    tally = check_counts("parent:children")
    assert tally.created in (BATCH, BATCH * 2, BATCH * 3, BATCH * 4)
    assert tally.cancelled >= tally.created - ENDING
    posted = list(Mail.objects.values_list("idempotency_key", flat=True))
    done = Run.objects.filter(parent="parent", entries__location="post", entries__metadata__status="completed")
    assert sorted(posted) == sorted(done.values_list("pk", flat=True))
    assert not Turn.objects.exists()
