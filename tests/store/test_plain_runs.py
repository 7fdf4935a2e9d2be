"""A run without children, key, limits, priority, tags or schedule costs what it cost before these: its rows alone."""

from __future__ import annotations

from collections.abc import Callable
from operator import sub
from typing import Any, NamedTuple

import pytest
from django.db import connection

from durable import AsyncContext, Context, workflow
from tests.support.stores import in_force, passed

pytestmark = pytest.mark.postgres


@workflow(name="plain.logged")
def one_step(ctx: Context) -> int:
    return ctx.step("one", lambda: 1)


@workflow(name="plain.logged_async")
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


@pytest.mark.django_db
@pytest.mark.parametrize("program", [one_step, one_async_step])
def test_a_plain_run_writes_the_rows_of_a_run_and_an_entry_and_no_others(program: Any) -> None:
    assert written_by_a_run(program) == {
        "durable_run": (1, 2, 0),  # its start; its claim and its end
        "durable_entry": (1, 0, 0),
        "durable_entrymetadata": (1, 0, 0),
    }


@pytest.mark.django_db
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


# -- the write-ahead log of a plain run


_RUNS = 30
_COUNTING = 18_00_00  # the first version that counts the log of a session


class Log(NamedTuple):
    """What a session has written to the log: records, copies of whole pages, bytes."""

    records: int
    copies: int
    size: int


@pytest.fixture
def counting(transactional_db: None) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version_num")
        if int(cursor.fetchone()[0]) < _COUNTING:
            pytest.skip("PostgreSQL counts the log of a session from version 18 on")


def logged() -> Log:
    """What this session has written so far."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_stat_force_next_flush()")
        cursor.execute("SELECT wal_records, wal_fpi, wal_bytes FROM pg_stat_get_backend_wal(pg_backend_pid())")
        return Log(*map(int, cursor.fetchone()))


def least_of(work: Callable[[int], object]) -> Log:
    """The least that `work` writes, of those times at which no whole page was copied behind a checkpoint."""
    found = []
    for number in range(_RUNS):
        before = logged()
        work(number)
        after = logged()
        if after.copies == before.copies:
            found.append(Log(after.records - before.records, 0, after.size - before.size))
    return min(found)


def least_of_runs(program: Any, kind: str = "run", **how: Any) -> Log:
    """The ids, which are in several indexes, have as many characters for each `kind` of three letters."""
    with in_force() as at:
        return least_of(lambda number: passed(at, program.using(id=f"{kind}-{number:08d}", **how).start().id))


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(("program", "size"), [(one_step, 2_829), (one_async_step, 2_873)], ids=["sync", "async"])
def test_a_plain_run_writes_no_record_and_hardly_a_byte_more_than_before(program: Any, size: int) -> None:
    """34 records: fewer are fine. The bytes leave room for what is aligned otherwise; a row in a side table has 200."""
    least = least_of_runs(program)
    assert least.records <= 34
    assert least.size <= size + 40


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("how", [{"key": "k"}, {"deadline": "1 hour"}], ids=["a key", "a deadline"])
def test_a_row_in_a_side_table_would_be_noticed(how: dict[str, Any]) -> None:
    with_more, plain = least_of_runs(one_step, "one", **how), least_of_runs(one_step, "two")
    assert with_more.records > 34 >= plain.records
    assert with_more.size > plain.size + 150


@pytest.mark.usefixtures("counting")
def test_the_count_is_that_of_this_session_alone() -> None:
    """A row of a table without an index: the insert and the commit."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE plain_wal (number int)")
        try:
            least = least_of(lambda number: cursor.execute("INSERT INTO plain_wal VALUES (%s)", [number]))
        finally:
            cursor.execute("DROP TABLE plain_wal")
    assert (least.records, least.size < 150) == (2, True)
