"""The write-ahead log of a plain run: as many records and bytes as before there were children, keys and limits.

PostgreSQL counts the log of each session, so that nothing else on the server is measured. One run in two has a split
page or a page that is tidied up in it. The least of many runs has none: it is the same number each time, on any
machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from django.db import connection

from durable import AsyncContext, Context, workflow
from tests.support.stores import in_force, passed

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

_RUNS = 30
_COUNTING = 18_00_00  # the first version that counts the log of a session


class Log(NamedTuple):
    """What a session has written to the log: records, copies of whole pages, bytes."""

    records: int
    copies: int
    size: int


@workflow(name="plain.logged")
def one_step(ctx: Context) -> int:
    return ctx.step("one", lambda: 1)


@workflow(name="plain.logged_async")
async def one_async_step(ctx: AsyncContext) -> int:
    return await ctx.step("one", lambda: 1)


@pytest.fixture(autouse=True)
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


@pytest.mark.parametrize(("program", "size"), [(one_step, 2_829), (one_async_step, 2_873)], ids=["sync", "async"])
def test_a_plain_run_writes_no_record_and_hardly_a_byte_more_than_before(program: Any, size: int) -> None:
    """34 records: fewer are fine. The bytes leave room for what is aligned otherwise; a row in a side table has 200."""
    least = least_of_runs(program)
    assert least.records <= 34
    assert least.size <= size + 40


@pytest.mark.parametrize("how", [{"key": "k"}, {"deadline": "1 hour"}], ids=["a key", "a deadline"])
def test_a_row_in_a_side_table_would_be_noticed(how: dict[str, Any]) -> None:
    with_more, plain = least_of_runs(one_step, "one", **how), least_of_runs(one_step, "two")
    assert with_more.records > 34 >= plain.records
    assert with_more.size > plain.size + 150


def test_the_count_is_that_of_this_session_alone() -> None:
    """A row of a table without an index: the insert and the commit."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE plain_wal (number int)")
        try:
            least = least_of(lambda number: cursor.execute("INSERT INTO plain_wal VALUES (%s)", [number]))
        finally:
            cursor.execute("DROP TABLE plain_wal")
    assert (least.records, least.size < 150) == (2, True)
