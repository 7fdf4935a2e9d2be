"""`{% runs_of order %}` in a project's own templates: who sees which runs, as HTML and as a list."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import AnonymousUser, Permission, User
from django.db import connection
from django.http import HttpRequest
from django.template import Context as TemplateContext
from django.template import engines
from django.test import RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from durable import Context, workflow
from durable.models.run import RunQuerySet
from durable.runtime import Runtime
from tests.subjects.conftest import Orders
from tests.support.stores import passed


@workflow(name="tests.runs_of.waits")
def waits(ctx: Context) -> None:
    ctx.queue.next("<answer>")


@workflow(name="tests.runs_of.charges")
def charges(ctx: Context) -> None:
    ctx.step("charge", lambda: 1 / 0, once=True)


def only_mine(_request: HttpRequest, runs: RunQuerySet) -> RunQuerySet:
    """The user's runs begin with "mine"."""
    return runs.filter(id__startswith="mine")


@pytest.fixture
def order(at: Runtime, orders: Orders) -> Any:
    [order] = orders(1)
    waits.using(id="mine", about=order).start()
    passed(at, "mine")
    waits.using(id="ended", about=order).start().cancel()
    return order


def user(*permissions: str, **fields: Any) -> User:
    found = User.objects.create(username="ada", **fields)
    found.user_permissions.add(*Permission.objects.filter(codename__in=permissions))
    return found


def rendered(text: str, who: Any, order: Any) -> str:
    request = RequestFactory().get("/")
    request.user = who
    return str(engines["django"].from_string("{% load durable %}" + text).render({"order": order}, request)).strip()


def test_a_user_who_may_see_runs_sees_those_of_the_object(order: Any) -> None:
    ada = user("view_run", is_staff=True)
    with CaptureQueriesContext(connection) as queries:
        html = rendered("{% runs_of order %}", ada, order)
    assert len([each for each in queries if "durable_run" in each["sql"]]) == 1
    assert html.index("sleeping") < html.index("cancelled")  # the open one first
    assert "Waiting for a message in &lt;answer&gt;" in html
    assert f'href="{reverse("admin:durable_run_change", args=["mine"])}"' in html


def test_the_runs_are_a_list_for_templates_of_the_project(order: Any) -> None:
    text = "{% runs_of order 1 as runs %}{% for run in runs %}{{ run.id }}: {{ run.state }}{{ run.url }}{% endfor %}"
    assert rendered(text, user("view_run"), order) == "mine: sleeping"  # no link for who may not enter the admin


def test_a_run_that_waits_for_a_person_is_held(at: Runtime, orders: Orders) -> None:
    [order] = orders(1)
    charges.using(id="charges", about=order).start()
    passed(at, "charges")
    states = "{% runs_of order as runs %}{% for run in runs %}{{ run.state }}: {{ run.state_in_words }}{% endfor %}"
    assert rendered(states, user("view_run"), order) == "sleeping: held"


def test_others_see_nothing(order: Any) -> None:
    for who in (AnonymousUser(), user(is_staff=True)):
        assert rendered("{% runs_of order %}", who, order) == ""
    template = engines["django"].from_string("{% load durable %}{% runs_of order %}")
    assert template.render({"order": order}).strip() == ""  # without a request
    assert TemplateContext({"order": order}).get("request") is None


def test_a_limited_user_sees_the_runs_that_the_project_allows(order: Any) -> None:
    ada = user("view_run")
    with override_settings(DURABLE={"ADMIN_RUNS": f"{__name__}.only_mine"}):
        html = rendered("{% runs_of order %}", ada, order)
    assert "sleeping" in html
    assert "cancelled" not in html
