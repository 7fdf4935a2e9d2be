"""Tags in the admin: on a run's page, in a column of the list, in the search."""

from __future__ import annotations

from html import unescape

import pytest
from django.test import Client, override_settings

from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url

pytestmark = pytest.mark.django_db

HOSTILE = '<b>"\u202e & tag:x=y'


def start(id: str, **tags: str) -> None:
    flows.quick.using(id=id, tags=tags).start()


def ids(client: Client, query: str) -> list[str]:
    return [row.run.id for row in client.get(url("changelist"), {"q": query}).context["rows"]]


def test_the_search_finds_the_runs_with_all_tags(stage: Stage, operator: Client) -> None:
    start("one", tenant="acme", order="1")
    start("two", tenant="acme", order="2")
    start("three", tenant="two words")
    assert ids(operator, "tag:tenant=acme") == ["two", "one"]
    assert ids(operator, "tag:tenant=acme tag:order=1") == ["one"]
    assert ids(operator, 'tag:tenant="two words"') == ["three"]
    assert ids(operator, "tag:tenant=nobody") == []
    assert "write a tag as tag:name=value" in unescape(text_of(operator.get(url("changelist"), {"q": "tag:tenant"})))


def test_a_page_shows_tags_that_lead_to_their_runs(stage: Stage, operator: Client) -> None:
    start("one", tenant="acme", note=HOSTILE, words="two words")
    for page in (
        text_of(operator.get(url("change", "one"))),
        text_of(operator.get(url("changelist") + "?columns=tags")),
    ):
        assert HOSTILE not in page
        assert '?q=tag%3Atenant%3Dacme"' in page
        assert "?q=tag%3Awords%3D%22two%20words%22" in page
        assert "<bdi>tenant=acme</bdi>" in page
    assert "tenant=acme" not in text_of(operator.get(url("changelist")))


def test_of_a_hashed_tag_the_name_is_shown(stage: Stage, operator: Client) -> None:
    with override_settings(DURABLE={"TAGS": {"email": "hashed"}}):
        start("one", email="ada@example.com")
        page = text_of(operator.get(url("change", "one")))
        assert "email=" in page
        assert "(hashed)" in page
        assert "ada@example.com" not in page
        assert "hmac-sha256" not in page
        assert ids(operator, "tag:email=ada@example.com") == ["one"]


def redact(_workflow: str, field: str, value: object) -> object:
    """A hook that hides one tag."""
    return "***" if field == "tag:customer" else value


def test_a_redacted_tag_is_shown_as_the_hook_shows_it(stage: Stage, operator: Client) -> None:
    start("one", customer="lovelace", tenant="acme")
    with override_settings(DURABLE={"REDACT": f"{__name__}.redact"}):
        page = text_of(operator.get(url("change", "one")))
        assert "<bdi>customer=***</bdi>" in page
        assert "tenant%3Dacme" in page
        assert "customer%3D" not in page
        assert "lovelace" not in text_of(operator.get(url("changelist") + "?columns=tags"))
