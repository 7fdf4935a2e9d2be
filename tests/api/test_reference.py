"""The interface describes itself: a page for people, a document for programs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from django.test import Client

from durable.api.schema import document
from tests.admin.conftest import MakeUser, make_user
from tests.support.barriers import barriers
from tests.support.browsing import complaints_of

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer

pytestmark = pytest.mark.django_db

__all__ = ["make_user"]


@pytest.fixture
def reader(client: Client, make_user: MakeUser) -> Client:
    client.force_login(make_user("view_run"))
    return client


def test_the_prefix_leads_to_the_page(reader: Client) -> None:
    page = reader.get("/api/", follow=True)
    assert page.redirect_chain == [("docs", 302)] or page.redirect_chain == [("/api/docs", 302)]
    assert page.status_code == 200


def test_the_page_has_each_operation_and_each_schema(reader: Client) -> None:
    text = reader.get("/api/docs").content.decode()
    found = document()
    for path, item in found["paths"].items():
        for operation in item.values():
            assert f'id="{operation["operationId"]}"' in text
        assert f"<code>/api{path}</code>".replace("{", "&#123;") in text.replace("{", "&#123;")
    for name in found["components"]["schemas"]:
        assert f'id="schema-{name}"' in text
        assert f'href="#schema-{name}"' in text
    assert "<script" not in text
    assert "style=" not in text


def test_the_document_is_that_of_the_docs_with_the_address_as_server(reader: Client) -> None:
    answer = reader.get("/api/schema")
    assert answer.headers["Content-Type"] == "application/json"
    found = answer.json()
    assert found.pop("servers") == [{"url": "/api"}]
    expected = document()
    expected.pop("servers")
    assert found == expected


@pytest.mark.parametrize("address", ["/api/", "/api/docs", "/api/schema"])
def test_they_need_the_permission(client: Client, make_user: MakeUser, address: str) -> None:
    assert client.get(address).status_code in (401, 403)
    client.force_login(make_user())
    assert client.get(address).status_code == 403


@pytest.mark.browser
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_page_in_a_browser(
    page: "Page", live_server: "LiveServer", make_user: Callable[..., Any], client: Client
) -> None:
    complaints = complaints_of(page)
    client.force_login(make_user("view_run"))
    session = client.cookies["sessionid"].value
    page.context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
    page.goto(f"{live_server.url}/api/")
    page.get_by_role("heading", name="Runs", exact=True).wait_for()
    assert complaints == []
    rules = ("wcag2a", "wcag2aa")
    assert [each["id"] for each in barriers(page, rules, within=None)] == []
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 844})
    assert [each["id"] for each in barriers(page, rules, within=None)] == []
    wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0
