"""Lists of runs with a tag, with every other condition, in every order; and bulks on them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from durable import Context, get_run, workflow
from durable.core.errors import ErrorInfo
from durable.inspection.bulks import _conditions
from durable.inspection.pagination import RunOrder
from durable.inspection.run_facts import Tag, split_tags, tags_of
from durable.inspection.runs import RunCriteria, count_runs, list_runs, parse_search, settle_roots
from durable.inspection.selection import Filtered
from durable.models import Run, RunTag
from durable.operations import bulk
from durable.runtime import Runtime
from durable.tag_hashes import stored_tags
from tests.support.plans import most_read, scans, sorts
from tests.support.stores import settle

pytestmark = pytest.mark.django_db


NOW: Final = datetime(2026, 1, 2, tzinfo=UTC)
ACME: Final = (("tenant", "acme"),)


def add_runs(number: int, **columns: Any) -> None:
    """Runs of two tenants by turns, each with an order of its own; each third has failed."""
    runs = [
        Run(
            **{
                "id": f"r{n:05}",
                "workflow": f"w{n % 5}",
                "queue": "q",
                "input": "[]",
                "state": "failed" if n % 3 == 0 else "completed",
                "created_at": NOW + timedelta(seconds=n),
                "finished_at": NOW + timedelta(hours=1, seconds=-n),
                **columns,
            }
        )
        for n in range(number)
    ]
    Run.objects.bulk_create(runs)
    RunTag.objects.bulk_create(
        RunTag(run=run, name=name, value=value, start_value=value, created_at=run.created_at)
        for n, run in enumerate(runs)
        for name, value in {"tenant": "acme" if n % 2 else "other", "order": str(n)}.items()
    )


def ids(wanted: RunCriteria, order: RunOrder = RunOrder.NEWEST, limit: int = 50) -> list[str]:
    """The ids of all pages."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        page = list_runs(wanted, order=order, cursor=cursor, limit=limit)
        found += [run.id for run in page.runs]
        cursor = page.next_cursor
        if cursor is None:
            return found


def numbered(numbers: Sequence[int]) -> list[str]:
    return [f"r{n:05}" for n in numbers]


@pytest.mark.parametrize("limit", [3, 50])
def test_every_order_and_condition_has_the_runs_with_the_tags(limit: int) -> None:
    add_runs(30)
    odd = [n for n in range(30) if n % 2]
    assert ids(RunCriteria(tags=ACME), limit=limit) == numbered(odd[::-1])
    assert ids(RunCriteria(tags=ACME), RunOrder.OLDEST, limit) == numbered(odd)
    assert ids(RunCriteria(tags=ACME), RunOrder.LAST_FINISHED, limit) == numbered(odd)
    assert ids(RunCriteria(tags=ACME), RunOrder.NEXT, limit) == []
    failed = RunCriteria(tags=ACME, states=frozenset({"failed"}))
    assert ids(failed, limit=limit) == numbered([n for n in odd[::-1] if n % 3 == 0])
    assert ids(RunCriteria(tags=ACME, workflow="w3"), limit=limit) == numbered([n for n in odd[::-1] if n % 5 == 3])
    assert ids(RunCriteria(tags=ACME, id_prefix="r0002"), limit=limit) == numbered([21, 23, 25, 27, 29])
    since = RunCriteria(tags=ACME, created_from=NOW + timedelta(seconds=11), created_until=NOW + timedelta(seconds=17))
    assert ids(since, limit=limit) == numbered([15, 13, 11])
    assert ids(RunCriteria(tags=(*ACME, ("order", "7"))), limit=limit) == ["r00007"]
    assert ids(RunCriteria(tags=(*ACME, ("order", "8"))), limit=limit) == []
    assert str(count_runs(failed)) == "5"


def test_a_bulk_counts_the_runs_with_the_tags() -> None:
    add_runs(30)
    found = Filtered(RunCriteria(tags=ACME)).tally(frozenset({"failed"}), 100)
    assert sum(number for (state, _), number in found.numbers.items() if state == "failed") == 5
    assert found.numbers["completed", ""] == 10
    assert not found.partial


def test_children_with_the_tags_are_found_too() -> None:
    add_runs(3)
    Run.objects.filter(pk="r00001").update(parent="r00000")
    assert ids(settle_roots(RunCriteria(tags=ACME, only_roots=True))) == ["r00001"]


@pytest.mark.postgres
def test_a_page_reads_what_it_shows() -> None:
    add_runs(5_000)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE durable_run, durable_runtag")
    tables = {"durable_run", "durable_runtag"}
    for wanted in (
        RunCriteria(tags=ACME),
        RunCriteria(tags=(*ACME, ("order", "777"))),
        RunCriteria(tags=ACME, created_until=NOW + timedelta(seconds=2_000)),
    ):
        with CaptureQueriesContext(connection) as queries:
            assert list_runs(wanted, limit=20).runs
        assert scans(queries, tables) + sorts(queries, tables) == [], wanted
        assert most_read(queries)[0] <= 60, wanted


@pytest.mark.parametrize(
    ("text", "tags", "rest"),
    [
        ("tag:tenant=acme", {"tenant": "acme"}, ""),
        (
            ' tag:tenant="two words" tag:order=42 bank is closed',
            {"tenant": "two words", "order": "42"},
            "bank is closed",
        ),
        ("tag:a=b=c tag:a=b=c", {"a": "b=c"}, ""),
        ("tag:name=🚚/x", {"name": "🚚/x"}, ""),
        ("tags are no tag:a=b", {}, "tags are no tag:a=b"),
        ("", {}, ""),
    ],
)
def test_a_search_begins_with_tags(text: str, tags: dict[str, str], rest: str) -> None:
    assert split_tags(text) == (tuple(tags.items()), rest)


@pytest.mark.parametrize("text", ["tag:", "tag:a", "tag:a=", 'tag:a="b', "tag:=b", "tag:a b=c", 'tag:a="b"c'])
def test_what_begins_like_a_tag_and_is_none_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="write a tag as tag:name=value"):
        split_tags(text)


def test_two_values_of_one_tag_are_told() -> None:
    with pytest.raises(ValueError, match='one value of the tag "a"'):
        split_tags("tag:a=b tag:a=c")
    with pytest.raises(ValueError, match="at most 8 tags: search for no more"):
        split_tags(" ".join(f"tag:t{number}=x" for number in range(100)))
    with pytest.raises(ValueError, match="201 characters"):
        RunCriteria(tags=(("a", "b" * 201),))


def test_the_rest_of_a_search_is_looked_for_among_the_tagged() -> None:
    add_runs(4, error=ErrorInfo("E", "the bank is closed"))
    assert ids(parse_search("tag:tenant=acme bank")) == numbered([3, 1])
    assert parse_search("tag:tenant=acme r00003") == RunCriteria(tags=ACME, id_prefix="r00003")


@pytest.mark.parametrize("value", ["acme", "two words", 'a"b', 'a "b" c', " x", "hmac"])
def test_the_word_of_a_tag_finds_it_again(value: str) -> None:
    word = Tag(name="name", value=value).word
    assert word == "" if '"' in value and " " in value else split_tags(word) == ((("name", value),), "")


@pytest.fixture
def hashed() -> Iterator[None]:
    with override_settings(DURABLE={"TAGS": {"email": "hashed"}}):
        yield


def test_a_hashed_tag_is_found_and_not_shown(hashed: None) -> None:
    [run] = Run.objects.bulk_create([Run(id="r", workflow="w", queue="q", input="[]", created_at=NOW)])
    [(name, value)] = stored_tags({"email": "ada@example.com"}).items()
    RunTag.objects.create(run=run, name=name, value=value, created_at=NOW)
    assert ids(parse_search("tag:email=ada@example.com")) == ["r"]
    assert ids(parse_search("tag:email=eve@example.com")) == []
    assert ids(RunCriteria(tags=(("email", "ada@example.com"),)), RunOrder.NEXT) == []
    [tag] = tags_of([run])["r"]
    assert (tag.name, tag.value, tag.is_hashed, tag.word) == ("email", "", True, "")
    [words] = _conditions(RunCriteria(tags=(("email", "ada@example.com"),)))
    assert words == 'with the tag "email=(hidden)"'
    assert list(_conditions(RunCriteria(tags=ACME))) == ['with the tag "tenant=acme"']


@pytest.mark.parametrize("limit", [1, 2, 3])
@pytest.mark.parametrize("within", [False, True], ids=["all", "within"])
def test_runs_of_one_moment_are_listed_once(limit: int, within: bool) -> None:
    names = ["a", "B", "é", "e\u0301", "🚚", "\ufb01", "Z z", "r\u0130", "~", "%"]
    runs = [Run(id=each, workflow="w", queue="q", input="[]", created_at=NOW) for each in names]
    Run.objects.bulk_create(runs)
    for name, value in {"tenant": "acme", "order": "1"}.items():
        RunTag.objects.bulk_create(RunTag(run=run, name=name, value=value, created_at=NOW) for run in runs)
    wanted = sorted(names, key=lambda each: each.encode())
    visible = Run.objects.exclude(id="B") if within else None
    if within:
        wanted.remove("B")
    for tags in (ACME, (*ACME, ("order", "1"))):
        for order, expected in ((RunOrder.NEWEST, wanted[::-1]), (RunOrder.OLDEST, wanted)):
            found: list[str] = []
            cursor: str | None = None
            while True:
                page = list_runs(RunCriteria(tags=tags), order=order, cursor=cursor, limit=limit, within=visible)
                found += [run.id for run in page.runs]
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert found == expected, (tags, order)


# -- bulks on the runs with a tag: counted, applied in pages, in the background too; what is told of them


OF_ACME = Filtered(RunCriteria(tags=(("tenant", "acme"),)))
broken = True


def charge() -> None:
    if broken:
        raise RuntimeError("the bank is closed")


@workflow(name="tests.tag_bulks.pay")
def pay(ctx: Context, waits: bool = False) -> None:
    if waits:
        ctx.queue.next("go")
    ctx.step("charge", charge, max_retries=0)


def start(number: int, *, waits: bool = False, **tags: str) -> list[str]:
    how = pay.using(tags=tags)
    return [handle.id for handle in how.start_many([(waits,) for _ in range(number)])]


def states(ids: list[str]) -> set[str]:
    return {str(get_run(each).state) for each in ids}


def test_a_bulk_in_the_background_acts_on_the_runs_with_the_tag(at: Runtime) -> None:
    mine, others = start(7, waits=True, tenant="acme"), start(3, waits=True, tenant="other")
    settle()
    assert bulk.eligible("cancel", OF_ACME).count == 7
    done = bulk.apply("cancel", OF_ACME, expected=7, in_background=True)
    assert done.run_id is not None
    settle()
    assert states(mine) == {"cancelled"}
    assert states(others) == {"sleeping"}


def test_failed_runs_with_the_tag_are_recovered(at: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = start(5, tenant="acme"), start(2, tenant="other")
    settle()
    assert states(mine) == states(others) == {"failed"}
    monkeypatch.setitem(globals(), "broken", False)
    assert bulk.eligible("recover", OF_ACME).count == 5
    bulk.apply("recover", OF_ACME, expected=5, in_background=True)
    settle()
    assert states(mine) == {"completed"}
    assert states(others) == {"failed"}


def test_a_replay_of_failed_runs_with_the_tag_has_their_tags(at: Runtime) -> None:
    start(2, tenant="acme")
    settle()
    bulk.apply("replay", OF_ACME, expected=2, in_background=True)
    settle()
    assert Run.objects.tagged(tenant="acme").count() == 4


def test_a_bulk_tells_no_value_where_a_hook_hides_some(at: Runtime) -> None:
    assert list(_conditions(OF_ACME.wanted)) == ['with the tag "tenant=acme"']
    with override_settings(DURABLE={"REDACT": "tests.tags.test_copies.only_stages"}):
        assert list(_conditions(OF_ACME.wanted)) == ['with the tag "tenant=(hidden)"']
