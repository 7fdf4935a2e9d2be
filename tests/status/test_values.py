"""Published values: an entry each, exactly once; what readers get, and how pages show them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from durable import Break, Context, Continue, Handle, Markdown, workflow
from durable.admin import values as cards
from durable.core.errors import HistoryDivergedError, PayloadError
from durable.core.location import display_location, value_name, value_segment
from durable.inspection.shown import values_of
from durable.models import Entry, EntryMetadata, Run
from durable.testing import Harness
from tests.core.flavours import Flavour
from tests.faults.passing import pass_once
from tests.status.conftest import log_in
from tests.support.commands import printed
from tests.support.plans import read
from tests.support.stores import in_force, passed

BOTH = pytest.mark.parametrize("flavour", [Flavour("sync"), Flavour("async")], ids=repr)
TABLE = [{"item": "tea", "price": 12}, {"item": "<b>cup</b>", "sold": True}]
TEXT = "# Offer\n\n*tea* <script>alert(1)</script> ![x](https://evil.example/x.png) [a](javascript:alert(2)) [b](https://b.example)"


@dataclass
class Quote:
    price: Decimal


@BOTH
class TestInTheHarness:
    def test_a_value_is_an_entry_and_is_read_by_its_name(self, flavour: Flavour) -> None:
        @flavour
        async def run(ctx: Any) -> None:
            await ctx.step("quote", flavour.function(dict), {"price": 12})  # the step's name is free for a value
            await ctx.publish("quote", {"price": 12})
            await ctx.publish("text", Markdown("*tea*"))
            await ctx.publish("object", Quote(Decimal("1.50")))
            await ctx.sleep("wait", 60)

        with Harness() as h:
            handle = h.start(run)
            assert handle.values() == {}
            assert handle.view("quote") is None
            h.settle()
            assert handle.values() == {
                "quote": {"price": 12},
                "text": Markdown("*tea*"),
                "object": Quote(Decimal("1.50")),
            }
            assert handle.view("quote") == {"price": 12}
            kinds = [(each.kind, each.location) for each in handle.history()]
            assert kinds[:2] == [("step", "quote"), ("publish", "quote~v0")]
            assert handle.history()[1].data["output"] == {"price": 12}

    def test_it_is_published_once_whatever_crashes(self, flavour: Flavour) -> None:
        @flavour
        async def run(ctx: Any) -> str:
            drawn = ctx.random.random()
            await ctx.publish("drawn", drawn)
            await ctx.step("one", flavour.function(dict))
            await ctx.publish("drawn", drawn + 1)
            await ctx.sleep("wait", 60)
            return "end"

        def drive(h: Harness, handle: Handle[Any]) -> None:
            h.finish(handle)
            entries = [each for each in handle.history() if each.kind == "publish"]
            assert [each.location for each in entries] == ["drawn~v0", "drawn~v1"]
            first, second = (each.data["output"] for each in entries)
            assert handle.values() == {"drawn": second}
            assert second == first + 1

        with Harness() as h:
            h.crash_everywhere(run, drive=drive)

    def test_a_replay_does_not_publish_again(self, flavour: Flavour) -> None:
        passes: list[int] = []

        @flavour
        async def run(ctx: Any) -> None:
            passes.append(1)
            await ctx.publish("pass", len(passes))
            await ctx.sleep("wait", 60)

        with Harness(strict=False) as h:
            handle = h.start(run)
            h.finish(handle)
            assert len(passes) == 2
            assert handle.values() == {"pass": 1}

    def test_the_newest_of_a_name_survives_what_a_loop_prunes(self, flavour: Flavour) -> None:
        @flavour
        async def run(ctx: Any) -> int:
            async def iteration(c: Any, number: int) -> Any:
                await c.step("work", flavour.function(int), number)
                if number in (0, 3):
                    await c.publish("rare", number)
                await c.publish("every", number)
                return Continue(number + 1) if number < 11 else Break(number)

            last: int = await ctx.loop("all", iteration, state=0, history_prune_interval=2, history_size=1)
            await ctx.publish("rare", "at the end")
            return last

        with Harness() as h:
            handle = h.start(run)
            for _ in range(3):
                h.run(handle)
            assert handle.values() == {"rare": "at the end", "every": 11}
            places = [each.location for each in handle.history() if each.kind == "publish"]
            assert len(places) == 2  # nothing is left of the replaced ones

    def test_code_without_the_value_does_not_fit_unless_it_is_removed(self, flavour: Flavour) -> None:
        has_it, is_removed = [True], [False]

        @flavour
        async def run(ctx: Any) -> None:
            if has_it[0]:
                await ctx.publish("quote", 12)
            elif is_removed[0]:
                await ctx.removed("quote", "publish")
            await ctx.sleep("wait", 60)
            await ctx.step("end", flavour.function(dict))

        with Harness(strict=False) as h:
            fitting = h.start(run)
            h.settle()
            has_it[0], is_removed[0] = False, True
            assert h.finish(fitting).state == "completed"
            has_it[0] = True
            other = h.start(run)
            h.settle()
            has_it[0] = is_removed[0] = False
            failed = h.finish(other)
            assert failed.state == "failed"
            assert failed.error is not None
            assert failed.error.type == HistoryDivergedError.__name__
            assert '"quote~v0"' in failed.error.message


class TestReading:
    def test_a_reader_waits_for_it(self) -> None:
        def run(ctx: Context) -> None:
            ctx.sleep("wait", 0)
            ctx.publish("quote", 12)
            ctx.queue.next("go on")

        with Harness() as h:
            handle = h.start(run)
            assert handle.view("quote", wait="10 s") == 12
            with pytest.raises(TimeoutError, match="nothing is due"):
                handle.view("other", wait="10 s")
            h.send(handle, "go on")
            h.settle()
            with pytest.raises(TimeoutError, match='has ended and has not published "other"'):
                handle.view("other", wait="10 s")

    def test_async_code_reads_it(self) -> None:
        def run(ctx: Context) -> None:
            ctx.publish("quote", 12)

        with Harness() as h:
            handle = h.start(run)

            async def read() -> tuple[Any, ...]:
                waited = await handle.aview("quote", wait="10 s")
                return waited, await handle.aview("quote"), await handle.avalues(), await handle.astatus()

            assert asyncio.run(read()) == (12, 12, {"quote": 12}, None)

    def test_a_value_that_cannot_be_recorded_is_refused_and_leaves_nothing(self) -> None:
        def run(ctx: Context) -> str:
            with pytest.raises(PayloadError, match='the value "odd"'):
                ctx.publish("odd", object())
            return "went on"

        with Harness() as h:
            handle = h.start(run)
            assert h.finish(handle).output == "went on"
            assert handle.values() == {}

    @pytest.mark.parametrize("name", ["send", "a/b", "~1", "x~v0", "\x00\ud800"])
    def test_a_name_may_look_like_anything(self, name: str) -> None:
        def run(ctx: Context) -> None:
            ctx.publish(name, 1)
            ctx.publish(name, 2)

        with Harness() as h:
            handle = h.start(run)
            h.finish(handle)
            assert handle.values() == {name: 2}
            assert handle.view(name) == 2

    def test_locations_are_displayed_by_the_name(self) -> None:
        assert value_name("all/~3/" + value_segment("a~b", 4)) == "a~b"
        assert display_location("all/~3/" + value_segment("a~b", 0)) == "all / iteration 3 / a~b"


@workflow(name="tests.values.offer")
def offer(ctx: Context, text: str = TEXT) -> None:
    ctx.publish("price", 1234.5)
    ctx.publish("count", 12_000)
    ctx.publish("note", "two\nlines & <b>more</b>")
    ctx.publish("offer", Markdown(text))
    ctx.publish("items", TABLE)
    ctx.publish("raw", {"a": [1, "</script>"]})
    ctx.queue.next("go on")


@workflow(name="tests.values.counting")
def counting(ctx: Context, most: int) -> None:
    for number in range(most):
        ctx.publish(f"number {number}", number)


@workflow(name="tests.values.busy")
def busy(ctx: Context, turns: int) -> None:
    def turn(scope: Context, number: int) -> Break | Continue:
        scope.publish("price", number)
        scope.publish("a/b ~v%", number)
        return Break(number) if number == turns else Continue(number + 1)

    ctx.publish("first", "only once")
    for number in range(12):
        ctx.publish("step", number)
    ctx.loop("turns", turn, state=0)
    ctx.publish("größe \x00", "last")


@workflow(name="tests.values.nothing")
def nothing(ctx: Context) -> None:
    ctx.queue.next("go on")


class TestPages:
    def test_each_form_has_a_card(self, admin_page: Callable[..., str]) -> None:
        pass_once(offer.using(id="a").start())
        shown = admin_page("change", "a")
        assert '<p class="durable-value-number">1,234.50</p>' in shown
        assert '<p class="durable-value-number">12,000</p>' in shown
        assert "two\nlines &amp; &lt;b&gt;more&lt;/b&gt;" in shown
        assert '<th scope="col">item</th><th scope="col">price</th><th scope="col">sold</th>' in shown
        assert "&lt;b&gt;cup&lt;/b&gt;" in shown
        assert "<td>true</td>" in shown  # as in JSON
        assert "</script>&quot;" not in shown
        assert admin_page("change", "a", part="values").count('class="durable-card durable-value"') == 6

    def test_the_first_ones_stand_above_the_timeline(self, admin_page: Callable[..., str]) -> None:
        pass_once(counting.using(id="a").start(8))
        shown = admin_page("change", "a")
        assert shown.count('class="durable-card durable-value"') == 6
        assert '<a href="?part=values">All 8 published values</a>' in shown
        assert admin_page("change", "a", part="values").count('class="durable-card durable-value"') == 8

    def test_markdown_is_rendered_without_html_images_and_scripts(self, admin_page: Callable[..., str]) -> None:
        pass_once(offer.using(id="a").start())
        shown = admin_page("change", "a")
        html = shown[shown.index('<div class="durable-value-markdown"') :]
        html = html[: html.index("</div>")]
        assert "<h3>Offer</h3>" in html  # below the name of the card
        assert "<em>tea</em>" in html
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
        assert "<img" not in html
        assert 'href="javascript' not in html
        assert '<a href="https://b.example" rel="noreferrer nofollow">b</a>' in html

    def test_without_the_package_markdown_is_text(
        self, admin_page: Callable[..., str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(cards, "_renderer", lambda: None)
        pass_once(offer.using(id="a").start("*tea* <script>"))
        shown = admin_page("change", "a", part="values")
        assert "*tea* &lt;script&gt;" in shown
        assert "durable-value-markdown" not in shown

    def test_a_run_without_values_has_neither_cards_nor_a_tab(self, admin_page: Callable[..., str]) -> None:
        pass_once(nothing.using(id="plain").start())
        shown = admin_page("change", "plain")
        assert "part=values" not in shown
        assert "durable-values" not in shown

    def test_values_need_the_permission_to_see_payloads(self, db: None, client: Client) -> None:
        pass_once(offer.using(id="a").start())
        log_in(client, "view_run")
        for query in ({}, {"part": "values"}):
            shown = client.get(reverse("admin:durable_run_change", args=["a"]), query).content.decode()
            assert "12,000" not in shown
        assert client.get("/api/runs/a/values").status_code == 403

    def test_a_large_value_is_left_out_of_the_cards(self, admin_page: Callable[..., str]) -> None:
        pass_once(offer.using(id="a").start("x" * 300_000))
        shown = admin_page("change", "a", part="values")
        assert "It is too large for a card." in shown

    def test_rest_the_command_line_and_an_export_have_them(
        self, admin_page: Callable[..., str], client: Client
    ) -> None:
        pass_once(offer.using(id="a").start())
        answered = client.get("/api/runs/a/values").json()["results"]
        assert [(each["name"], each["form"]) for each in answered] == [
            ("price", "number"),
            ("count", "number"),
            ("note", "text"),
            ("offer", "markdown"),
            ("items", "table"),
            ("raw", "json"),
        ]
        assert answered[3]["value"] == TEXT
        assert answered[4]["value"] == TABLE
        lines = [json.loads(each) for each in printed("values", "a", "-o", "json").splitlines()]
        assert [each["value"] for each in lines] == [each["value"] for each in answered]
        assert Entry.objects.filter(run=Run.objects.get(pk="a"), kind="publish").count() == 6


class TestManyValues:
    """The database finds the newest of each name: readers do not get all values of a run to choose from."""

    def test_each_reader_gets_the_newest_of_each_name(self, db: None, django_assert_num_queries: Any) -> None:
        with in_force() as at:
            run, other = busy.start(20), nothing.start()
            for each in (run, other):
                passed(at, each.id)
            newest = {"first": "only once", "step": 11, "price": 20, "a/b ~v%": 20, "größe \x00": "last"}
            with django_assert_num_queries(2):
                assert list(run.values().items()) == list(newest.items())
            for name, value in newest.items():
                with django_assert_num_queries(1):
                    assert run.view(name) == value
            for name in ("none", "pric", "0", "", "x" * 200, "a", "b ~v%"):
                assert run.view(name) is None
            assert other.values() == {}
            assert at.store.published(run.id) == [at.store.published(run.id, name)[0] for name in newest]
            shown = values_of(Run.objects.get(pk=run.id))
            assert [(each.name, each.value) for each in shown][:4] == list(newest.items())[:4]
            with django_assert_num_queries(1):
                assert values_of(Run(id=other.id)) == []

    @pytest.mark.postgres
    def test_ten_thousand_values_of_a_name(self, db: None) -> None:
        with in_force() as at:
            run = busy.start(1)
            passed(at, run.id)
            rows = [
                Entry(run_id=run.id, location=f"price~v{number}", kind="publish", ordinal=number, output="1", data={})
                for number in range(1_000, 11_000)
            ]
            Entry.objects.bulk_create(rows, batch_size=2_000)
            EntryMetadata.objects.bulk_create(
                [EntryMetadata(entry=each, status="completed", created_at=at.now()) for each in rows], batch_size=2_000
            )
            for look in (run.values, partial(run.view, "price"), partial(values_of, Run.objects.get(pk=run.id))):
                with CaptureQueriesContext(connection) as queries:
                    assert look()
                assert read(queries, "durable_entrymetadata") <= 5
            with CaptureQueriesContext(connection) as queries:
                assert run.view("price") == 1
            assert read(queries, "durable_entry") == 1, "the newest value of all has the name"
