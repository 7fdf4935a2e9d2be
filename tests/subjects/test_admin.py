"""The runs in the admin of what they are about: the column of the list, the section of the page, who sees which."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import Group, Permission, User
from django.db import connection, transaction
from django.http import HttpRequest
from django.test import Client, RequestFactory, override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from durable import Context, workflow
from durable.admin import RunsMixin
from durable.models.run import RunQuerySet
from durable.runtime import Runtime
from project.shop.admin import OrderAdmin
from project.shop.models import Order
from tests.subjects.conftest import Orders
from tests.support.stores import passed

LogIn = Callable[..., Client]


@workflow(name="tests.subject_admin.one")
def one(ctx: Context, number: int = 0) -> int:
    return ctx.step("one", lambda: number)


@workflow(name="tests.subject_admin.asks")
def asks(ctx: Context) -> str:
    ctx.step("charge", lambda: 1)
    ctx.step("label", lambda: 2)
    return ctx.queue.next("approval", names=["approved"]).name


def only_mine(_request: HttpRequest, runs: RunQuerySet) -> RunQuerySet:
    """The user's runs begin with "mine"."""
    return runs.filter(id__startswith="mine")


@pytest.fixture
def log_in(db: None, client: Client) -> LogIn:
    def log_in(*names: str) -> Client:
        user = User.objects.create_user("ada", password="x", is_staff=True)
        user.user_permissions.add(*Permission.objects.filter(codename__in=names))
        client.force_login(user)
        return client

    return log_in


def text(client: Client, address: str) -> str:
    response = client.get(address)
    assert response.status_code == 200
    return " ".join(response.content.decode().split())


def list_page() -> str:
    return reverse("admin:shop_order_changelist")


def page(order: Any) -> str:
    return reverse("admin:shop_order_change", args=[order.pk])


def test_the_list_has_the_newest_open_run_of_each_object(at: Runtime, orders: Orders, log_in: LogIn) -> None:
    first, second, _ = orders(3)
    asks.using(id="asks", about=first).start()
    one.using(id="newer", about=first).start()
    one.using(id="ended", about=second).start()
    passed(at, "asks")
    for run_id in ("newer", "ended"):
        passed(at, run_id)
    body = text(log_in("view_order", "view_run"), list_page())
    cells = re.findall(r'<td class="field-durable_run">(.*?)</td>', body)
    assert cells[:2] == ["-", "-"]
    address = reverse("admin:durable_run_change", args=["asks"])
    assert cells[2].startswith(f'<a href="{address}"><bdi>Waiting for a message')


def test_a_list_page_takes_one_more_query_however_many_objects_it_has(
    at: Runtime, orders: Orders, log_in: LogIn
) -> None:
    ada = log_in("view_order", "view_run")

    def queries() -> list[str]:
        with CaptureQueriesContext(connection) as captured:
            text(ada, list_page())
        return [each["sql"] for each in captured if "durable_" in each["sql"]]

    orders(1)
    few = queries()
    for order in orders(10):
        asks.using(about=order).start()
    assert len(few) == len(queries()) == 1


def test_the_page_of_an_object_has_its_runs_and_the_buttons_that_answer(
    at: Runtime, orders: Orders, log_in: LogIn
) -> None:
    order, other = orders(2)
    asks.using(id="asks", about=order).start()
    one.using(id="ended", about=order).start()
    one.using(id="of-another", about=other).start()
    passed(at, "asks")
    passed(at, "ended")
    ada = log_in("view_order", "view_run", "operate_run")
    body = text(ada, page(order))
    section = body.partition("durable-runs-of-object")[2]
    assert "of-another" not in body
    assert section.index("run/asks/change/") < section.index("run/ended/change/")  # the open one first
    assert "Waiting for a message" in section
    assert "<bdi>charge</bdi>" in section
    assert "<bdi>label</bdi>" in section
    for name in ("send", "act/cancel", "act/pause"):
        assert f"{reverse('admin:durable_run_changelist')}asks/{name}/" in section
    assert f"?about=shop.order%3A{order.pk}" in section
    sent = ada.get(reverse("admin:durable_run_send", args=["asks"]))
    assert sent.status_code == 200


def test_buttons_and_runs_need_their_permissions(at: Runtime, orders: Orders, log_in: LogIn) -> None:
    [order] = orders(1)
    asks.using(id="asks", about=order).start()
    passed(at, "asks")
    ada = log_in("view_order")
    assert "durable-runs-of-object" not in text(ada, page(order))
    assert "durable_run" not in text(ada, list_page())
    User.objects.get(username="ada").user_permissions.add(Permission.objects.get(codename="view_run"))
    body = text(ada, page(order))
    assert "asks/change/" in body
    assert "asks/send/" not in body
    with override_settings(DURABLE={"ADMIN_RUNS": f"{__name__}.only_mine"}):
        asks.using(id="mine", about=order).start()
        body = text(ada, page(order))
        assert "mine/change/" in body
        assert "asks/change/" not in body
        assert "mine/change/" in text(ada, list_page())


def test_who_may_not_see_the_object_sees_no_runs_of_it(at: Runtime, orders: Orders, log_in: LogIn) -> None:
    [order] = orders(1)
    asks.using(id="asks", about=order).start()
    assert log_in("view_run", "operate_run").get(page(order)).status_code == 403


@pytest.mark.parametrize("is_atomic", [False, True], ids=["autocommit", "atomic_requests"])
def test_the_page_of_a_run_is_shown_though_the_table_of_what_it_is_about_is_gone(
    at: Runtime, orders: Orders, log_in: LogIn, caplog: pytest.LogCaptureFixture, is_atomic: bool
) -> None:
    [order] = orders(1)
    asks.using(id="asks", about=order).start()
    ada = log_in("view_order", "view_run")
    table = Order._meta.db_table
    address = reverse("admin:durable_run_change", args=["asks"])
    with connection.schema_editor() as editor:
        editor.alter_db_table(Order, table, f"{table}_gone")
    try:
        with transaction.atomic() if is_atomic else nullcontext():
            body = text(ada, address)
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Order, f"{table}_gone", table)
    assert f"order {order.pk}" in body
    assert page(order) not in body
    assert f"shop.order:{order.pk} cannot be read" in caplog.text
    assert page(order) in text(ada, address)


def test_an_object_with_many_runs_shows_the_newest_and_leads_to_all(at: Runtime, orders: Orders, log_in: LogIn) -> None:
    [order] = orders(1)
    asks.using(about=order).start_many([() for _ in range(12)], ids=[f"r{number:02}" for number in range(12)])
    body = text(log_in("view_order", "view_run"), page(order))
    assert body.count('class="durable-run-of-object"') == 10
    assert "r01/change/" not in body
    assert "Older runs" in body


class _GroupAdmin(RunsMixin, admin.ModelAdmin):  # type: ignore[type-arg]  # at run time it has no parameters
    list_display = ("durable_run", "name")


def test_an_object_is_saved_and_added_with_the_mixin(at: Runtime, db: None) -> None:
    user = User.objects.create_superuser("root")
    group = Group.objects.create(name="a")
    asks.using(id="asks", about=group).start()
    site = _GroupAdmin(Group, admin.site)

    def asked(method: str, data: dict[str, Any]) -> Any:
        request: Any = getattr(RequestFactory(), method)("/", data)
        request.user, request.session = user, {}
        request._dont_enforce_csrf_checks = True
        from django.contrib.messages.storage.cookie import CookieStorage

        request._messages = CookieStorage(request)
        return request

    assert site.get_list_display(asked("get", {})) == ["durable_run", "name"]
    answered = site.change_view(asked("post", {"name": "b", "permissions": []}), str(group.pk))
    assert answered.status_code == 302
    group.refresh_from_db()
    assert group.name == "b"
    refused: Any = site.change_view(asked("post", {"name": ""}), str(group.pk))
    refused.render()
    assert "asks/change/" in refused.content.decode()
    added = site.add_view(asked("post", {"name": "new"}))
    assert added.status_code == 302
    assert Group.objects.filter(name="new").exists()
    empty: Any = site.add_view(asked("get", {}))
    assert "durable-runs-of-object" not in empty.render().content.decode()


def test_the_shop_shows_the_runs_of_its_orders() -> None:
    assert isinstance(admin.site._registry[Order], OrderAdmin)
    assert issubclass(OrderAdmin, RunsMixin)
