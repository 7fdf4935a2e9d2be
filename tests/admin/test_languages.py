"""The pages in other languages: no text is left unmarked, and German ones fit on a screen and on a telephone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from babel.messages.catalog import Catalog
from babel.messages.mofile import write_mo
from django.contrib.auth.models import Permission

from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.every_page import OF_DJANGO, REASON, WITHOUT_A_PAGE, addresses, fill, words_of_data
from tests.admin.pages import hidden, text_of, url
from tests.support.addresses import names_of_admin
from tests.support.browsers import complaints_of
from tests.support.languages import outside_brackets, texts_in_brackets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from django.contrib.auth.models import User
    from django.test import Client
    from playwright.sync_api import Browser
    from pytest_django import Settings
    from pytest_django.live_server_helper import LiveServer

pytestmark = pytest.mark.slow


@pytest.fixture
def pages(stage: Stage, client: Client, make_user: Callable[..., User]) -> Iterator[dict[str, list[str]]]:
    """The addresses of all pages, for a client that may do everything."""
    found = Permission.objects.filter(content_type__app_label="durable")
    user = make_user(*found.values_list("codename", flat=True))
    fill(stage, user)
    client.force_login(user)
    yield addresses()
    flows.SWITCH["broken"] = False


def test_every_text_of_the_pages_is_marked_for_translation(client: Client, pages: dict[str, list[str]]) -> None:
    names = {each.removeprefix("admin:").removeprefix("durable_run_") for each in names_of_admin()}
    of_django = {each for each in names if each.startswith(("durable_operatoraction", "jsi18n", "view_on_site"))}
    assert names - of_django - WITHOUT_A_PAGE - set(pages) == set()
    known = words_of_data()
    unmarked: dict[str, set[str]] = {}
    with texts_in_brackets():
        for address in [each for group in pages.values() for each in group]:
            response = client.get(address)
            if response.status_code in (200, 403, 404, 422):
                words = outside_brackets(response.content.decode().replace(REASON, "").replace(OF_DJANGO, "")) - known
                if words:
                    unmarked[address] = words
    assert unmarked == {}, "\n".join(f"{address}: {sorted(words)}" for address, words in unmarked.items())


#: Pages of the project's admin, and parts of pages.
OF_THE_PROJECT = frozenset({"index", "overview"})
CONTENT = re.compile(r'<div id="durable-page"([^>]*)>')
OF_ENGLISH = ' lang="en" dir="ltr"'


def content_in(client: Client, address: str, language: str) -> list[str]:
    """The attributes of the page's content, for a browser that asks for a language."""
    return CONTENT.findall(client.get(address, headers={"accept-language": language}).content.decode())


def test_texts_that_no_catalogue_has_are_shown_as_english(client: Client, pages: dict[str, list[str]]) -> None:
    one_of_each = {name: group[0] for name, group in pages.items() if name not in OF_THE_PROJECT}
    others = (("fr", OF_ENGLISH), ("de", ""), ("en-gb", ""))
    for number, (name, address) in enumerate(one_of_each.items()):  # each page without a catalogue, and in one of these
        for language, attributes in (("he", OF_ENGLISH), others[number % len(others)]):
            assert content_in(client, address, language) == [attributes], (name, language)
    hebrew = {"accept-language": "he"}
    index = client.get(pages["index"][0], headers=hebrew).content.decode()
    assert f'<p class="durable-entry"{OF_ENGLISH}>' in index
    assert f'<ul class="durable-incidents"{OF_ENGLISH}' in index
    assert '<html lang="he" dir="rtl">' in index
    pausing = url("queue_hold", "high", "pause")
    asked = client.get(pausing, headers=hebrew)
    assert f'<div class="breadcrumbs"{OF_ENGLISH}>' in text_of(asked)
    done = client.post(pausing, hidden(asked), headers=hebrew, follow=True).content.decode()
    assert re.search(rf'<div{OF_ENGLISH}>\s*<ul class="messagelist">', done)


def test_a_language_of_the_project_is_that_of_its_catalogue(
    operator: Client, settings: Settings, tmp_path: Path
) -> None:
    catalogue = tmp_path / "he" / "LC_MESSAGES"
    catalogue.mkdir(parents=True)
    own = Catalog(locale="he")
    own.add("en", "he", context="code of the language of these texts")
    with (catalogue / "django.mo").open("wb") as file:
        write_mo(file, own)
    settings.LOCALE_PATHS = [tmp_path]
    assert content_in(operator, url("queues"), "he") == [""]


def test_without_a_catalogue_of_its_own_a_language_has_the_texts_of_the_projects(
    operator: Client, settings: Settings
) -> None:
    settings.LANGUAGE_CODE = "de"
    settings.LOCALE_PATHS = []  # as it is: Django forgets catalogues that it has read beside another default
    assert content_in(operator, url("queues"), "he") == [' lang="de" dir="ltr"']


@pytest.mark.browser
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_german_pages_fit_and_tell_times_in_german(
    chromium: Browser, live_server: LiveServer, client: Client, pages: dict[str, list[str]]
) -> None:
    with chromium.new_context(locale="de-DE") as context:
        context.add_cookies([{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}])
        page = context.new_page()
        page.set_default_timeout(120_000)
        complaints = complaints_of(page)
        too_wide = []
        for name, group in pages.items():
            if name == "overview":  # a part of the app's page, which is among them
                continue
            page.goto(live_server.url + group[0])
            assert page.locator("html").get_attribute("lang") == "de", name
            for width in (1440, 390):
                page.set_viewport_size({"width": width, "height": 900})
                if page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
                    too_wide.append((group[0], width))
        assert too_wide == []
        assert [each for each in complaints if "404" not in each and "422" not in each] == []
        page.goto(live_server.url + pages["change"][1])
        page.wait_for_function(
            "[...document.querySelectorAll('[data-durable-relative]')].every(each => /^(vor|in|jetzt)/.test(each.textContent))"
        )
