"""Whatever has to know each filter of runs, each column of the list, each kind of entry and each alert knows them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlencode

import pytest
from django.http import QueryDict
from django.test import Client

from durable.admin.filter_form import FilterForm
from durable.admin.list_page import COLUMNS
from durable.admin.overview import _SAID, query_of
from durable.alerts import conditions
from durable.alerts.conditions import Condition
from durable.alerts.settings import EVENTS
from durable.core.divergences import BLOCK
from durable.core.records import EntryKind
from durable.inspection.bulks import _conditions
from durable.inspection.runs import RunCriteria
from durable.inspection.wording import _KINDS
from durable.replay_check.mends import _CALLS
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
#: A value of each condition. A list, a bulk, its words and the addresses of findings have to know a new one.
GIVEN: dict[str, Any] = {
    "states": frozenset({"failed"}),
    "workflow": "shop.fulfil",
    "queue": "mails",
    "created_from": NOON,
    "created_until": NOON,
    "finished_from": NOON,
    "finished_until": NOON,
    "id_prefix": "order-4",
    "error_text": "no answer",
    "waiting_queue": "approval",
    "cause": "0123456789abcdef",
    "place": "charge",
    "is_undone": True,
    "worker": "web-1:7:a",
    "is_stuck": True,
    "is_diverged": True,
    "needs_attention": True,
    "is_held": True,
    "only_roots": True,
    "hides_alerts": True,
    "tags": (("tenant", "acme"),),
    "about": "shop.order:42",
}
#: What a bulk's words leave out: which kinds of runs the list begins without.
UNTOLD = {"only_roots", "hides_alerts"}
#: What the search box of the list says, not a field of its own.
SEARCHED = {"id_prefix", "error_text", "tags"}


def test_each_condition_has_a_value_here() -> None:
    assert list(GIVEN) == [each.name for each in fields(RunCriteria)]


@pytest.mark.parametrize("name", sorted(GIVEN.keys() - UNTOLD))
def test_the_words_of_a_bulk_tell_each_condition(name: str) -> None:
    [words] = _conditions(RunCriteria(**{name: GIVEN[name]}))
    assert words


@pytest.mark.parametrize("name", sorted(_SAID - UNTOLD))
def test_the_address_of_a_finding_has_its_conditions(name: str) -> None:
    wanted = RunCriteria(**{name: GIVEN[name]})
    form = FilterForm(QueryDict(query_of(wanted, with_children=True).removeprefix("?")))
    assert form.is_valid(), form.errors
    assert replace(form.wanted(), only_roots=False) == wanted


@pytest.mark.parametrize("name", sorted(GIVEN.keys() - _SAID))
def test_a_condition_that_the_address_of_a_finding_lacks_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"does not say {name}"):
        query_of(RunCriteria(**{name: GIVEN[name]}))


#: Each condition as the address of the list has it.
ADDRESS = {
    "states": "state",
    "is_undone": "undone",
    "is_stuck": "stuck",
    "is_diverged": "diverged",
    "needs_attention": "attention",
    "is_held": "held",
}


@pytest.mark.parametrize("name", sorted(GIVEN.keys() - UNTOLD - SEARCHED))
def test_the_list_has_a_field_for_each_condition(name: str) -> None:
    [value] = GIVEN[name] if name == "states" else [GIVEN[name]]
    text = value.isoformat() if isinstance(value, datetime) else "true" if value is True else value
    form = FilterForm(QueryDict(urlencode({ADDRESS.get(name, name): text})))
    assert form.is_valid(), form.errors
    assert getattr(form.wanted(), name) == GIVEN[name]


def test_each_column_has_a_cell(stage: Stage, operator: Client) -> None:
    stage.start(flows.quick, id="run")
    query = urlencode([("columns", each.name) for each in COLUMNS])
    body = text_of(operator.get(f"{url('changelist')}?{query}"))
    head, _, rest = body.partition('id="result_list"')[2].partition("<tbody>")
    [row] = re.findall(r"<tr[ >].*?</tr>", rest.partition("</tbody>")[0], re.DOTALL)
    assert len(re.findall(r"<t[hd][ >]", row)) == len(re.findall(r"<t[hd][ >]", head)) > len(COLUMNS)


def test_each_kind_of_entry_has_a_word_and_the_call_that_makes_it() -> None:
    assert set(EntryKind) <= set(_KINDS)
    assert set(_CALLS) == {*EntryKind, BLOCK}


@pytest.mark.parametrize("event", EVENTS)
def test_each_alert_is_looked_for(event: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What looks for one is asked if it is switched on alone, and not if the others are."""
    asked: list[str] = []
    looks = {
        "_causes": {"cause", "rollback"},
        "_held": {"held"},
        "_hung": {"hung_step"},
        "_queues": {"queue"},
        "_schedules": {"schedule"},
        "_retention": {"retention"},
        "_database": {"database"},
    }
    assert {each for events in looks.values() for each in events} == set(EVENTS)

    def asking(name: str) -> Callable[..., list[Condition]]:
        def look(*_: Any) -> list[Condition]:
            asked.append(name)
            return []

        return look

    for name in looks:
        monkeypatch.setattr(conditions, name, asking(name))
    conditions.look_for(frozenset({event}), NOON, [])
    assert asked == [name for name, events in looks.items() if event in events]
