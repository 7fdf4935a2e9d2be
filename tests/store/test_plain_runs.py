"""A run without children, key, limits, priority, tags or schedule costs what it cost before these: its rows alone."""

from __future__ import annotations

from operator import sub
from typing import Any

import pytest
from django.db import connection

from durable import AsyncContext, Context, workflow
from tests.support.stores import in_force, passed

pytestmark = [pytest.mark.postgres, pytest.mark.django_db]


@workflow(name="plain.one_step")
def one_step(ctx: Context) -> int:
    return ctx.step("one", lambda: 1)


@workflow(name="plain.one_async_step")
async def one_async_step(ctx: AsyncContext) -> int:
    return await ctx.step("one", lambda: 1)


@workflow(name="plain.parent")
def parent(ctx: Context) -> None:
    ctx.start_child("one", one_step)


def written() -> dict[str, tuple[int, int, int]]:
    """Return, by table of durable's, the rows that this session has inserted, updated and deleted.

    Within a transaction they add up.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT substring(relname FROM '^[a-z]+_[a-z]+'), sum(n_tup_ins)::int, sum(n_tup_upd)::int, sum(n_tup_del)::int "
            "FROM pg_stat_xact_user_tables "  # those of partitions are those of their table
            "WHERE relname LIKE 'durable\\_%%' AND n_tup_ins + n_tup_upd + n_tup_del > 0 GROUP BY 1",
            [],
        )
        return {table: (inserted, updated, deleted) for table, inserted, updated, deleted in cursor.fetchall()}


def written_by_a_run(program: Any, **how: Any) -> dict[str, tuple[int, int, int]]:
    before = written()  # of earlier transactions too
    with in_force() as at:
        passed(at, program.using(id="p", **how).start().id)
    counted = {table: tuple(map(sub, numbers, before.get(table, (0, 0, 0)))) for table, numbers in written().items()}
    return {table: numbers for table, numbers in counted.items() if any(numbers)}


@pytest.mark.parametrize("program", [one_step, one_async_step])
def test_a_plain_run_writes_the_rows_of_a_run_and_an_entry_and_no_others(program: Any) -> None:
    assert written_by_a_run(program) == {
        "durable_run": (1, 2, 0),  # its start; its claim and its end
        "durable_entry": (1, 0, 0),
        "durable_entrymetadata": (1, 0, 0),
    }


@pytest.mark.parametrize(
    ("program", "how", "side"),
    [
        (parent, {}, {"durable_child"}),
        (one_step, {"key": "k"}, {"durable_runkey"}),
        (one_step, {"deadline": "1 hour"}, {"durable_runlimit"}),
        (one_step, {"tags": {"tenant": "acme"}}, {"durable_runtag"}),
        (one_step, {"about": "shop.order:42"}, {"durable_runsubject"}),
    ],
    ids=["a child", "a key", "a deadline", "a tag", "a subject"],
)
def test_what_is_added_is_in_side_tables(program: Any, how: dict[str, Any], side: set[str]) -> None:
    found = written_by_a_run(program, **how)
    assert set(found) - {"durable_run", "durable_entry", "durable_entrymetadata"} == side
