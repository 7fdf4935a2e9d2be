"""Tags in the admin: on a run's page, in a column of the list, in the search."""

from __future__ import annotations

import json
import re
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.test import Client, override_settings

from durable import Context, workflow
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import listed, printed, read, rows_of, text_of, url

pytestmark = pytest.mark.django_db

HOSTILE = '<b>"\u202e & tag:x=y'


def start(id: str, **tags: str) -> None:
    flows.quick.using(id=id, tags=tags).start()


def ids(client: Client, query: str) -> list[str]:
    return listed(client, f"?{urlencode({'q': query})}")


def test_the_search_finds_the_runs_with_all_tags(stage: Stage, operator: Client) -> None:
    start("one", tenant="acme", order="1")
    start("two", tenant="acme", order="2")
    start("three", tenant="two words")
    assert ids(operator, "tag:tenant=acme") == ["two", "one"]
    assert ids(operator, "tag:tenant=acme tag:order=1") == ["one"]
    assert ids(operator, 'tag:tenant="two words"') == ["three"]
    assert ids(operator, "tag:tenant=nobody") == []
    assert "write a tag as tag:name=value" in read(operator, url("changelist") + "?q=tag:tenant")


def test_a_page_shows_tags_that_lead_to_their_runs(stage: Stage, operator: Client) -> None:
    start("one", tenant="acme", note=HOSTILE, words="two words")
    for address in (url("change", "one"), url("changelist") + "?columns=tags"):
        page = text_of(operator.get(address))
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


@workflow(name="tests.admin.tags_itself")
def tags_itself(ctx: Context) -> None:
    ctx.tag(customer="lovelace", tenant="acme")
    ctx.tag(customer="byron")


def test_what_a_run_has_tagged_itself_is_shown_as_the_hook_shows_it(stage: Stage, operator: Client) -> None:
    stage.start(tags_itself, id="one")
    with override_settings(DURABLE={"REDACT": f"{__name__}.redact"}):
        export: Any = operator.get(url("export", "one"))
        pages = [
            text_of(operator.get(url("change", "one"))),
            text_of(operator.get(url("step", "one") + "?at=tag~0")),
            text_of(operator.get(url("step", "one") + "?at=tag~1")),
            b"".join(export.streaming_content if export.streaming else [export.content]).decode(),
            printed("show", "one"),
            printed("export", "one"),
        ]
    for page in pages:
        assert "***" in page
        assert "lovelace" not in page
        assert "byron" not in page
    assert "tenant=acme" in pages[1]


def show_nothing(_workflow: str, field: str, value: object) -> object:
    return "" if field == "tag:customer" else None if field == "tag:tenant" else value


def test_a_hook_that_shows_nothing_of_a_tag_makes_it_no_hashed_one(stage: Stage, operator: Client) -> None:
    start("one", customer="lovelace", tenant="acme")
    with override_settings(DURABLE={"REDACT": f"{__name__}.show_nothing"}):
        page = text_of(operator.get(url("change", "one")))
    assert "<bdi>customer=</bdi>" in page
    assert "<bdi>tenant=</bdi>" in page
    assert "(hashed)" not in page


@pytest.mark.parametrize("value", ["\ud800x", "a \udfff b", "\x00", "a\x00 b"])
def test_a_value_that_no_address_has_is_shown_without_a_link(stage: Stage, operator: Client, value: str) -> None:
    start("one", odd=value, tenant="acme")
    for address in (url("change", "one"), url("changelist") + "?columns=tags"):
        page = text_of(operator.get(address))
        assert "<bdi>odd=" in page
        assert "tag%3Aodd" not in page
        assert "tag%3Atenant%3Dacme" in page


@pytest.mark.parametrize(
    "value",
    ["\x1b[31m\nred", " x ", "\x85", 'a"b', "%2F&#?+", "\u202eabc", "e\u0301", "🚚", "\x1c", "\x1a0000", "a=b:c", "'"],
)
def test_the_link_of_a_tag_leads_to_its_runs(stage: Stage, operator: Client, value: str) -> None:
    start("one", odd=value)
    start("other", odd="x")
    [link] = re.findall(r'href="([^"]*tag%3Aodd[^"]*)"', text_of(operator.get(url("change", "one"))))
    assert rows_of(operator.get(unescape(link))) == ["one"]


def test_an_export_has_the_tags_of_the_run(stage: Stage, operator: Client) -> None:
    with override_settings(DURABLE={"TAGS": {"email": "hashed"}}):
        start("one", tenant="acme", email="ada@example.com")
    assert json.loads(printed("export", "one"))["run"]["tags"] == {"email": None, "tenant": "acme"}
