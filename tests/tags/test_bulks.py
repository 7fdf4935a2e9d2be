"""Bulks on the runs with a tag: counted, applied in pages, in the background too; what is told of them."""

from __future__ import annotations

import pytest
from django.test import override_settings

from durable import Context, get_run, workflow
from durable.inspection.bulks import _conditions
from durable.inspection.runs import RunCriteria
from durable.inspection.selection import Filtered
from durable.models import Run
from durable.operations import bulk
from durable.runtime import Runtime
from tests.support.stores import settle

ACME = Filtered(RunCriteria(tags=(("tenant", "acme"),)))
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
    assert bulk.eligible("cancel", ACME).count == 7
    done = bulk.apply("cancel", ACME, expected=7, in_background=True)
    assert done.run_id is not None
    settle()
    assert states(mine) == {"cancelled"}
    assert states(others) == {"sleeping"}


def test_failed_runs_with_the_tag_are_recovered(at: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = start(5, tenant="acme"), start(2, tenant="other")
    settle()
    assert states(mine) == states(others) == {"failed"}
    monkeypatch.setitem(globals(), "broken", False)
    assert bulk.eligible("recover", ACME).count == 5
    bulk.apply("recover", ACME, expected=5, in_background=True)
    settle()
    assert states(mine) == {"completed"}
    assert states(others) == {"failed"}


def test_a_replay_of_failed_runs_with_the_tag_has_their_tags(at: Runtime) -> None:
    start(2, tenant="acme")
    settle()
    bulk.apply("replay", ACME, expected=2, in_background=True)
    settle()
    assert Run.objects.tagged(tenant="acme").count() == 4


def test_a_bulk_tells_no_value_where_a_hook_hides_some(at: Runtime) -> None:
    assert list(_conditions(ACME.wanted)) == ['with the tag "tenant=acme"']
    with override_settings(DURABLE={"REDACT": "tests.tags.test_copies.only_stages"}):
        assert list(_conditions(ACME.wanted)) == ['with the tag "tenant=(hidden)"']
