"""The live bar of a project's own page: who sees what by its address, for how long, with and without JavaScript."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core import signing
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured
from django.template import Context as TemplateContext
from django.template import Template
from django.test import Client, modify_settings
from django.urls import NoReverseMatch, reverse
from django.utils import timezone
from django.utils.translation import override

from durable import Context, get_run, workflow
from durable.hooks import progress
from durable.models import Run, RunStatus
from tests.faults.passing import pass_once

pytestmark = pytest.mark.django_db

HOSTILE = '"><script>alert(1)</script>'


@workflow(name="tests.bars.said")
def said(ctx: Context, text: str, done: float | None = None, of: float | None = None) -> None:
    ctx.status(text, done=done, of=of)
    ctx.queue.next("go on")


def started(text: str = "waiting for the courier", done: float | None = 3, of: float | None = 4) -> str:
    handle = said.start(text, done, of)
    pass_once(handle)
    return handle.id


def rendered(run: Any, **context: Any) -> str:
    template = Template("{% load durable %}{% durable_progress run %}")
    return template.render(TemplateContext({"run": run, **context}))


def address_in(html: str) -> str:
    found = re.search('data-durable-progress="([^"]+)"', html)
    assert found is not None
    return found[1]


def as_json(client: Client, url: str) -> Any:
    return client.get(url, headers={"accept": "application/json"})


class TestTag:
    def test_it_shows_the_status_at_once_and_brings_its_script(self) -> None:
        html = rendered(started())
        assert 'max="1" value="0.7500"' in html
        assert "waiting for the courier" in html
        assert ">3 of 4</span>" in html
        assert '<script src="/static/durable/progress.js" defer></script>' in html
        assert "<noscript>" in html
        assert " style=" not in html
        assert " on" not in re.sub('"[^"]*"', "", html).replace(" on ", "")

    def test_a_handle_and_a_row_do_too(self) -> None:
        run_id = started()
        for run in (get_run(run_id), Run.objects.get(pk=run_id)):
            assert "waiting for the courier" in rendered(run)

    def test_a_nonce_of_the_page_is_given_to_the_script(self) -> None:
        assert 'defer nonce="n0nce"></script>' in rendered(started(), csp_nonce="n0nce")

    def test_a_text_is_escaped(self) -> None:
        html = rendered(started(HOSTILE))
        assert "<script>alert" not in html
        assert "&lt;script&gt;alert(1)" in html

    def test_a_run_that_has_ended_needs_no_script(self) -> None:
        run_id = started()
        get_run(run_id).cancel()
        html = rendered(run_id)
        assert "<script" not in html
        assert 'data-durable-ended="cancelled"' in html

    @pytest.mark.parametrize("text", ["page 1 of 3", ""])
    def test_a_run_that_has_ended_says_how_and_once(self, text: str) -> None:
        run_id = started(text or "x")
        if not text:
            RunStatus.objects.all().delete()
        assert "cancelled" not in rendered(run_id)
        get_run(run_id).cancel()
        shown = re.sub("<progress.*</progress>|<[^>]*>", " ", rendered(run_id)).split()
        assert shown == ([*text.split(), "3", "of", "4", "cancelled"] if text else ["cancelled"])

    def test_a_run_that_is_gone_shows_nothing(self) -> None:
        assert rendered("nobody") == ""

    def test_it_is_one_query(self, django_assert_num_queries: Callable[[int], Any]) -> None:
        run_id = started()
        with django_assert_num_queries(1):
            rendered(run_id)


class TestAddress:
    def test_anybody_with_it_sees_the_bar_and_nothing_else(self, client: Client) -> None:
        run_id = started()
        answer = as_json(client, address_in(rendered(run_id)))
        assert answer.status_code == 200
        shown = answer.json()
        assert shown.pop("at") is not None
        assert shown == {
            "text": "waiting for the courier",
            "numbers": "3 of 4",
            "done": 3,
            "of": 4,
            "part": 0.75,
            "eta": None,
            "state": "sleeping",
            "state_in_words": "sleeping",
            "has_ended": False,
        }
        assert answer["Cache-Control"] == "no-store"
        assert answer["Referrer-Policy"] == "no-referrer"

    def test_it_speaks_the_language_of_the_page_that_has_the_bar(self, client: Client) -> None:
        """The script sends no cookie, by which a project may know the language of its users."""
        run_id = started("")
        with override("de"):
            html = rendered(run_id)
        assert ">ruht</bdi>" in html
        answer = as_json(client, address_in(html)).json()
        assert (answer["state_in_words"], answer["numbers"]) == ("ruht", "3 von 4")
        assert '<html lang="de"' in client.get(address_in(html)).content.decode()

    def test_an_address_without_a_language_is_shown_in_that_of_the_request(self, client: Client) -> None:
        run_id = started("")
        said = [run_id, int((timezone.now() + timedelta(hours=1)).timestamp())]
        token = signing.dumps(said, salt=progress._SALT, compress=True)
        url = reverse(progress.URL_NAME, args=[token])
        answer = client.get(url, headers={"Accept": "application/json", "Accept-Language": "de"})
        assert answer.json()["state_in_words"] == "ruht"

    @modify_settings(MIDDLEWARE={"append": "django.contrib.auth.middleware.LoginRequiredMiddleware"})
    def test_it_needs_no_login_in_a_project_whose_pages_do(self, client: Client) -> None:
        assert as_json(client, address_in(rendered(started()))).status_code == 200

    def test_it_learns_of_a_new_status(self, client: Client) -> None:
        url = address_in(rendered(started()))
        RunStatus.objects.update(number=9, text="on the way", done=4)
        assert as_json(client, url).json()["part"] == 1.0

    def test_without_javascript_a_page_reloads_itself_until_the_run_has_ended(self, client: Client) -> None:
        run_id = started(HOSTILE)
        url = address_in(rendered(run_id))
        page = client.get(url).content.decode()
        assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page
        assert 'value="0.7500"' in page
        assert re.findall("<script[^>]*>", page) == ['<script src="/static/durable/progress.js" defer>']
        assert f'data-durable-progress="{url}"' in page  # with JavaScript it is kept up to date in place
        get_run(run_id).cancel()
        page = client.get(url).content.decode()
        assert "refresh" not in page
        assert "<script" not in page
        assert "<p data-durable-state>cancelled</p>" in page

    def test_characters_that_reorder_a_text_are_shown(self, client: Client) -> None:
        run_id = started("\u202eevil")
        html = rendered(run_id)
        assert r"\u202eevil" in html
        assert r"\u202eevil" in client.get(address_in(html)).content.decode()
        assert as_json(client, address_in(html)).json()["text"] == r"\u202eevil"

    def test_it_only_reads(self, client: Client) -> None:
        url = address_in(rendered(started()))
        for method in (client.post, client.put, client.delete):
            assert method(url).status_code == 405

    def test_it_expires(self, client: Client) -> None:
        run_id = started()
        url = progress.address_of(run_id, timezone.now() - timedelta(seconds=1))
        assert as_json(client, url).status_code == 410
        assert "<h1>This address has expired.</h1>" in client.get(url).content.decode()

    @pytest.mark.parametrize(
        "token",
        ["x", "x:y:z", signing.dumps(["a", 2**40]), signing.dumps("a", salt="durable.progress")],
        ids=["no token", "no signature", "without the salt", "of another value"],
    )
    def test_a_token_of_somebody_else_leads_nowhere(self, client: Client, token: str) -> None:
        assert as_json(client, f"/durable/progress/{token}/").status_code == 404

    def test_the_address_of_a_run_that_is_gone_leads_nowhere(self, client: Client) -> None:
        run_id = started()
        url = address_in(rendered(run_id))
        Run.objects.filter(pk=run_id).delete()
        assert as_json(client, url).status_code == 404


class TestWithoutAddresses:
    @pytest.fixture(autouse=True)
    def urls(self, settings: Any) -> None:
        settings.ROOT_URLCONF = "tests.status.no_hooks"

    def test_the_tag_says_what_to_do(self) -> None:
        run_id = started()
        with pytest.raises(ImproperlyConfigured, match=r'add path\("durable/", include\("durable.hooks.urls"\)\)'):
            rendered(run_id)

    def test_a_check_names_the_template_and_says_what_to_do(self) -> None:
        found = [each for each in run_checks(tags=["templates"]) if each.id == "durable.E103"]
        assert [each.hint for each in found] == [
            'Add path("durable/", include("durable.hooks.urls")) to the urlpatterns of the ROOT_URLCONF.'
        ]
        assert "order.html has {% durable_progress %}" in found[0].msg


def test_with_the_addresses_the_check_is_silent() -> None:
    assert not [each for each in run_checks(tags=["templates"]) if each.id == "durable.E103"]


def test_an_address_is_not_made_without_the_urls(settings: Any) -> None:
    settings.ROOT_URLCONF = "tests.status.no_hooks"
    with pytest.raises(NoReverseMatch):
        progress.address_of("a", timezone.now())
