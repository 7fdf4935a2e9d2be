"""The OpenAPI document is the one that the views make; a page shows it to people, an address to programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from django.conf import settings
from django.test import Client, override_settings
from drf_spectacular.validation import validate_schema

from durable.api import schema
from durable.api.schema import document
from durable.api.urls import urlpatterns
from durable.listings.problems import TITLES
from tests.admin.conftest import MakeUser, make_user
from tests.support.browsers import barriers, complaints_of

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.live_server_helper import LiveServer


pytestmark = pytest.mark.django_db

COMMITTED = settings.BASE_DIR / "docs" / "openapi.yaml"


@pytest.fixture(scope="module")
def committed() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMMITTED.read_text())
    return found


def test_the_committed_document_is_current() -> None:
    remedy = "write it again: DJANGO_SETTINGS_MODULE=project.settings python -m durable.api.schema > docs/openapi.yaml"
    assert COMMITTED.read_text() == schema.text(), remedy


@override_settings(
    SPECTACULAR_SETTINGS={"TITLE": "The host's", "SCHEMA_PATH_PREFIX": "/x", "CAMELIZE_NAMES": True},
    REST_FRAMEWORK={"DEFAULT_AUTHENTICATION_CLASSES": [], "DEFAULT_SCHEMA_CLASS": "rest_framework.schemas.AutoSchema"},
)
def test_the_document_does_not_depend_on_the_host() -> None:
    assert schema.text() == COMMITTED.read_text()


def test_the_document_is_openapi(committed: dict[str, Any]) -> None:
    validate_schema(committed)  # type: ignore[no-untyped-call]  # drf-spectacular's own


def test_each_reference_leads_somewhere(committed: dict[str, Any]) -> None:
    found = set(re.findall(r"\$ref: '?(#/[^'\s]+)", COMMITTED.read_text()))
    assert found
    for each in found:
        place: Any = committed
        for name in each.removeprefix("#/").split("/"):
            assert name in place, each
            place = place[name]


def test_each_address_is_described(committed: dict[str, Any]) -> None:
    addresses = {str(each.pattern) for each in urlpatterns if each.name not in {"anywhere", "root", "docs", "schema"}}
    described = {
        path[1:].replace("{run_id}", "<str:run_id>").replace("{message_id}", "<str:message_id>")
        .replace("{location}", "<path:location>").replace("{name}", "<path:name>")
            .replace("{bulk_id}", "<str:bulk_id>").replace("{cause}", "<str:cause>").replace("{question_id}", "<str:question_id>")
        for path in committed["paths"]
    }  # fmt: skip
    assert described == addresses


def operations(document: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    return [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]


def test_each_operation_says_what_it_does_and_how_it_fails(committed: dict[str, Any]) -> None:
    found = operations(committed)
    assert len(found) > 25
    assert len({operation["operationId"] for _, _, operation in found}) == len(found)
    for method, path, operation in found:
        assert operation["description"], path
        responses = operation["responses"]
        assert {"400", "401", "403", "404", "429"} <= set(responses), path
        assert all("application/problem+json" in responses[each]["content"] for each in responses if each >= "400"), (
            path
        )
        names = [each["name"] for each in operation.get("parameters", [])]
        assert ("Idempotency-Key" in names) == (method == "post"), path


def test_every_problem_is_described_in_the_guide() -> None:
    guide = (settings.BASE_DIR / "docs" / "rest.md").read_text()
    assert [code for code in TITLES if f"`{code}`" not in guide] == []


# -- the interface describes itself: a page for people, a document for programs


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
    page: Page, live_server: LiveServer, make_user: Callable[..., Any], client: Client
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
