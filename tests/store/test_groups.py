"""Groups of children: their counts equal a recount, and their turns come, whatever happens to the children."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from django.db import connections, transaction

from durable.core import transitions
from durable.core.location import child_token
from durable.core.records import (
    ENDED,
    GroupRecord,
    OnFailure,
    RunChange,
    RunState,
    WhenParentEnds,
)
from durable.models import Run
from durable.store import Store
from durable.store.postgres import PostgresStore
from durable.store.rules import row_rules
from tests.store.children import (
    GROUP,
    a_member,
    change,
    end,
    end_with,
    finish,
    grouped,
    member,
    park_for_group,
    spec,
    waiting,
)
from tests.store.making import NOW, cancel, changed, claimed, park, rows_read, started, the


def counts(store: Store) -> GroupRecord:
    """The counts of the group, which equal a recount of its children."""
    group = store.group(GROUP)
    assert group is not None
    members = store.members(GROUP, -1, 1000)
    found = Counter(each.state for each in members)
    open_ones = [each for each in members if each.state not in ENDED]
    due = [each for each in open_ones if the(store, each.run_id).wake_at is not None or each.state != RunState.PENDING]
    assert group.created == len(members)
    assert (group.completed, group.failed, group.cancelled) == (
        found[RunState.COMPLETED],
        found[RunState.FAILED],
        found[RunState.CANCELLED],
    )
    assert group.running == len(due)
    assert group.waiting == len(open_ones) - len(due)
    if group.spec.at_once is not None:
        assert group.running <= group.spec.at_once
    return group


def due(store: Store) -> list[int]:
    members = store.members(GROUP, -1, 1000)
    return [each.position - 10 for each in members if the(store, each.run_id).wake_at is not None]


def parent_is_due(store: Store) -> bool:
    return the(store, "parent").wake_at is not None


@pytest.mark.parametrize("at_once", [1, 2, 5, 9, None])
def test_as_many_as_may_run_at_once_are_due(store: Store, at_once: int | None) -> None:
    grouped(store, 7, at_once=at_once)
    assert due(store) == list(range(min(7, at_once or 7)))
    counts(store)


def test_the_end_of_one_releases_the_next_and_the_last_wakes_the_parent(store: Store) -> None:
    grouped(store, 5)
    for number, left in ((1, [0, 2]), (0, [2, 3]), (3, [2, 4]), (4, [2])):
        end(store, number)
        assert due(store) == left
        counts(store)
        assert not parent_is_due(store)
    end(store, 2)
    assert parent_is_due(store)
    assert counts(store).completed == 5


def test_a_child_that_is_cancelled_while_it_waits_releases_none(store: Store) -> None:
    grouped(store, 4)
    end(store, 3, RunState.CANCELLED)
    assert due(store) == [0, 1]
    assert counts(store).waiting == 1


def test_the_first_failure_stops_and_wakes_the_parent_once(store: Store) -> None:
    grouped(store, 6, on_failure=OnFailure.STOP)
    end(store, 0)
    assert due(store) == [1, 2]
    end(store, 1, RunState.FAILED)
    assert due(store) == [2]
    assert parent_is_due(store)
    group = counts(store)
    assert group.is_stopped
    held = claimed(store, "parent")
    change(store, held, is_read=True, is_dropped=True)
    group = counts(store)
    assert (group.completed, group.failed, group.cancelled, group.is_over) == (1, 1, 4, True)


def test_the_end_of_the_last_open_child_of_a_group_that_is_over_wakes_the_parent(store: Store) -> None:
    grouped(store, 4, on_failure=OnFailure.STOP)
    end(store, 0, RunState.FAILED)
    held = claimed(store, "parent")
    change(store, held, is_read=True)
    park_for_group(store, held)
    for number in (3, 1):
        end(store, number, RunState.CANCELLED)
        assert not parent_is_due(store)
        assert the(store, member(2)).wake_at is None
    end(store, 2, RunState.CANCELLED)
    assert parent_is_due(store)


def test_a_parent_that_parks_for_a_group_without_open_children_goes_on(store: Store) -> None:
    grouped(store, 2, on_failure=OnFailure.STOP)
    end(store, 0, RunState.FAILED)
    end(store, 1)
    held = claimed(store, "parent")
    change(store, held, is_read=True)
    park_for_group(store, held)
    assert parent_is_due(store)


def test_a_child_that_is_compensated_is_counted_again_and_its_end_wakes_the_parent(store: Store) -> None:
    grouped(store, 2)
    end(store, 0)
    end(store, 1)
    held = claimed(store, "parent")
    change(store, held, is_read=True)
    for number in (1, 0):
        changed(store, member(number), transitions.undone_by_parent, now=NOW, reason="", summary="")
    assert (counts(store).running, counts(store).completed) == (2, 0)
    park_for_group(store, held)
    for number in (0, 1):
        assert not parent_is_due(store)
        end_with(store, member(number), transitions.cancel_rolled_back, now=NOW, summary="")
    assert parent_is_due(store)
    assert counts(store).cancelled == 2


def test_a_group_that_is_settled_before_the_parent_parks(store: Store) -> None:
    held = started(store, "parent")
    change(store, held, new=spec(1), starts=[a_member(0)], created=1)
    end(store, 0)
    park_for_group(store, held)
    assert parent_is_due(store)


def test_a_commit_that_is_made_twice_starts_each_child_once(store: Store) -> None:
    held = started(store, "parent")
    for _ in range(2):
        change(store, held, new=spec(3), starts=[a_member(number) for number in range(3)], created=3)
    assert counts(store).created == 3


def test_the_end_of_the_parent_cancels_those_that_run_and_those_that_wait(store: Store) -> None:
    grouped(store, 5)
    end(store, 0)
    cancel(store, "parent")
    group = counts(store)
    assert (group.completed, group.cancelled, group.running, group.waiting) == (1, 4, 0, 0)


def test_no_turn_comes_after_the_end_of_the_parent_although_more_children_wait_than_one_commit_cancels(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = row_rules.CASCADED_AT_ONCE if isinstance(store, PostgresStore) else 5  # PostgreSQL's is in its functions
    monkeypatch.setattr(row_rules, "CASCADED_AT_ONCE", most)
    grouped(store, most + 3)
    cancel(store, "parent")
    assert due(store) == []
    assert counts(store).waiting == 3


def test_children_that_are_left_have_their_turns_after_the_end_of_the_parent(store: Store) -> None:
    grouped(store, 4, when_parent_ends=WhenParentEnds.LEAVE)
    cancel(store, "parent")
    assert due(store) == [0, 1]
    end(store, 0)
    end(store, 1)
    assert due(store) == [2, 3]
    counts(store)


def test_no_verb_lets_a_child_begin_before_its_turn(store: Store) -> None:
    grouped(store, 4)
    waiting = member(3)
    changed(store, waiting, transitions.woken, now=NOW)
    changed(store, waiting, transitions.paused_at_once, summary="")
    changed(store, waiting, transitions.resumed, now=NOW, summary="")
    assert due(store) == [0, 1]
    counts(store)


def test_a_child_that_is_paused_when_its_turn_comes_keeps_it(store: Store) -> None:
    grouped(store, 3, at_once=1)
    waiting = member(1)
    changed(store, waiting, transitions.paused_at_once, summary="")
    end(store, 0)
    assert due(store) == []
    changed(store, waiting, transitions.resumed, now=NOW, summary="")
    assert due(store) == [1]
    end(store, 1)
    assert due(store) == [2]


def test_a_failed_child_that_is_recovered_waits_for_its_turn(store: Store) -> None:
    grouped(store, 4)
    end(store, 0, RunState.FAILED)
    changed(store, member(0), transitions.recovered, now=NOW, generations={}, summary="")
    assert due(store) == [1, 2]
    assert counts(store).waiting == 2
    end(store, 1)
    assert due(store) == [0, 2]


def test_cancelled_children_are_replaced(store: Store) -> None:
    grouped(store, 4)
    end(store, 0)
    end(store, 1, RunState.CANCELLED)
    end(store, 3, RunState.CANCELLED)
    [first, second] = store.members(GROUP, -1, 10, is_lost=True)
    changed(store, "parent", transitions.woken, now=NOW)
    held = claimed(store, "parent")
    for _ in range(2):  # a commit that is made again
        starts = [a_member(1, 1), a_member(3, 1)]
        change(store, held, starts=starts, renewed=[first.run_id, second.run_id], is_continued=True)
        assert due(store) == [1, 2]
        assert counts(store).waiting == 1
    assert not store.members(GROUP, -1, 10, is_lost=True)


def test_lost_children_are_taken_out_and_replaced_later(store: Store) -> None:
    grouped(store, 4)
    end(store, 1, RunState.CANCELLED)
    end(store, 3, RunState.CANCELLED)
    lost = [each.run_id for each in store.members(GROUP, -1, 10, is_lost=True)]
    changed(store, "parent", transitions.woken, now=NOW)
    held = claimed(store, "parent")
    for _ in range(2):  # a commit that is made again
        change(store, held, taken_out=lost)
        assert (counts(store).created, counts(store).cancelled) == (2, 0)
    assert not store.members(GROUP, -1, 10, is_lost=True)
    assert set(lost) <= set(store.children_of("parent", None, "bills")), "they are children still"
    assert {each.member_of for each in store.children(lost).values()} == {None}
    for _ in range(2):
        change(store, held, starts=[a_member(1, 1), a_member(3, 1)], is_replacing=True, is_continued=True)
        assert counts(store).created == 4
    assert [each.run_id for each in store.members(GROUP, -1, 10)] == [
        member(0),
        f"{GROUP}:1~1",
        member(2),
        f"{GROUP}:3~1",
    ]


def test_a_child_that_was_taken_out_needs_no_turn_and_wakes_its_parent(store: Store) -> None:
    grouped(store, 4, on_failure=OnFailure.STOP, at_once=1)
    end(store, 0, RunState.CANCELLED)
    lost = member(0)
    before = counts(store)
    assert before.is_stopped
    changed(store, "parent", transitions.woken, now=NOW)
    held = claimed(store, "parent")
    change(store, held, taken_out=[lost])
    changed(store, lost, transitions.undone_by_parent, now=NOW, reason="anew", summary="")
    assert the(store, lost).wake_at is not None, "it waits for a turn"
    park(store, held, waiting_for=f"/{child_token(lost)}/", batch={"awaited_children": [lost]})
    assert not parent_is_due(store)
    end_with(store, lost, transitions.cancel_rolled_back, now=NOW, summary="")
    assert parent_is_due(store)
    assert counts(store) == replace(before, created=3, cancelled=0)


def test_the_deletion_of_an_open_child_counts_as_its_cancellation(postgres_store: PostgresStore) -> None:
    waiting(postgres_store, "alone", parent="other")
    grouped(postgres_store, 3, at_once=1)
    with connections[postgres_store.alias].cursor() as cursor:
        cursor.execute("DELETE FROM durable_run WHERE id = %s", [member(0)])
    assert due(postgres_store) == [1]
    end(postgres_store, 1)
    end(postgres_store, 2)
    assert parent_is_due(postgres_store)
    group = postgres_store.group(GROUP)
    assert group is not None
    assert (group.completed, group.cancelled) == (2, 1)


@pytest.mark.parametrize("name", ["sqlite_store", "postgres_store"])
def test_the_commit_of_an_end_names_the_queue_of_the_child_that_begins(
    name: str, request: pytest.FixtureRequest
) -> None:
    store = request.getfixturevalue(name)
    grouped(store, 5)
    own = the(store, member(0)).queue
    Run.objects.using(store.alias).filter(id=member(3)).update(queue="other")
    told = [finish(store, member(number)).queues_to_notify for number in range(4)]
    assert told == [{own}, {"other"}, {own}, frozenset()]
    counts(store)


def test_an_end_reads_as_few_turns_of_many(postgres_store: PostgresStore) -> None:
    held = started(postgres_store, "parent")
    members = [a_member(number) for number in range(2000)]
    change(postgres_store, held, new=spec(2000), starts=members[:5], created=5)
    with connections[postgres_store.alias].cursor() as cursor:
        cursor.execute("ANALYZE durable_run, durable_turn, durable_child")
    change(postgres_store, held, starts=members[5:], created=2000)
    for number in range(12):  # as often as PostgreSQL plans anew
        end(postgres_store, number)
    with transaction.atomic(using=postgres_store.alias), connections[postgres_store.alias].cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan TO off")  # for the claim, as if the tables were large
        before = rows_read(postgres_store.alias)
        end(postgres_store, 12)
        assert rows_read(postgres_store.alias) - before <= 12


def test_the_next_turn_is_found_by_the_order_of_an_index_whatever_the_statistics_say(
    postgres_store: PostgresStore,
) -> None:
    condition = "w.group_id = %s AND w.position >= %s AND w.position <= %s ORDER BY w.position"
    with transaction.atomic(using=postgres_store.alias), connections[postgres_store.alias].cursor() as cursor:
        cursor.execute("SELECT prosrc, proconfig FROM pg_proc WHERE proname = 'durable_member_ended_1'")
        [source, settings] = cursor.fetchone()
        assert condition % ("of_group", "t.turns_from", "upto") in source
        assert set(settings) == {"jit=off", "enable_seqscan=off", "enable_bitmapscan=off", "enable_sort=off"}
        for setting in settings:
            cursor.execute("SELECT set_config(%s, %s, true)", setting.split("="))
        cursor.execute(f"EXPLAIN SELECT w.run_id, w.due_at FROM durable_turn AS w WHERE {condition}", ["group", 10, 11])
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "Index Scan using durable_turn_in_order" in plan
    assert "Sort" not in plan


@pytest.mark.parametrize("seed", range(6))
def test_after_whatever_happens_the_counts_equal_a_recount_and_no_place_stays_free(store: Store, seed: int) -> None:
    dice = random.Random(seed)
    grouped(store, 12, at_once=dice.choice([1, 3, 5]))
    members = store.members(GROUP, -1, 100)
    for _ in range(80):
        member = dice.choice(members)
        number, state = member.position - 10, member.state
        if state in ENDED:
            if state != RunState.FAILED or dice.random() >= 0.4:
                continue  # nothing happens
            changed(store, member.run_id, transitions.recovered, now=NOW, generations={}, summary="")
        elif state == RunState.PAUSED:
            changed(store, member.run_id, transitions.resumed, now=NOW, summary="")
        elif state == RunState.PENDING:
            what = dice.random()
            if the(store, member.run_id).wake_at is None or what < 0.2:
                patch = dice.choice([transitions.woken, transitions.paused_at_once])
                given: dict[str, Any] = {"now": NOW} if patch is transitions.woken else {"summary": ""}
                store.change(member.run_id, lambda run, _, p=patch, g=given: RunChange(run=p(run, **g)))  # type: ignore[misc]
            else:
                end(store, number, dice.choice([RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED]))
        group = store.group(GROUP)
        assert group is not None
        assert group.running + group.waiting + group.completed + group.failed + group.cancelled == 12
        assert group.waiting == 0 or group.running == group.spec.at_once
        members = store.members(GROUP, -1, 100)
        ended = [each for each in members if each.state in ENDED]
        assert group.completed + group.failed + group.cancelled == len(ended)
