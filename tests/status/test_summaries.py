"""The line of text of a step's call: where it is shown, what it costs, and that a replay does not compare it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from durable import Context, workflow
from durable.core.options import options_of
from durable.core.steps import SUMMARY
from durable.models import Entry, Run
from durable.testing import Harness
from tests.core.flavours import Flavour
from tests.faults.passing import pass_once
from tests.support.commands import printed

HOSTILE = '<script>alert("1")</script> & co'
NAMES = ["Ada"]


def bill(number: int) -> int:
    return number * 2


def refuse(number: int) -> int:
    raise ValueError("no")


@workflow(name="tests.summaries.bills")
def bills(ctx: Context, names: list[str]) -> list[int]:
    ctx.step("plain", bill, 1)
    return [ctx.step(f"bill {n}", bill, n, summary=name) for n, name in enumerate(names)]


@pytest.mark.parametrize("flavour", [Flavour("sync"), Flavour("async")], ids=repr)
class TestRecord:
    def test_the_summary_is_in_the_entry_and_a_plain_step_has_none(self, flavour: Flavour) -> None:
        @flavour
        async def run(ctx: Any) -> None:
            await ctx.step("plain", flavour.function(bill), 1)
            await ctx.step("bill", flavour.function(bill), 1, summary="Ada")

        with Harness() as harness:
            handle = harness.start(run)
            harness.run_due()
            entries = {each.location: each.data for each in handle.history()}
            done = {"args": (1,), "output": 2}
            assert entries == {"plain": done, "bill": {**done, SUMMARY: "Ada"}}

    def test_a_replay_does_not_compare_it(self, flavour: Flavour) -> None:
        """The text differs in each pass: a history with another one still fits."""
        passes: list[int] = []

        @flavour
        async def run(ctx: Any) -> int:
            passes.append(1)
            first: int = await ctx.step("bill", flavour.function(bill), 1, summary=f"pass {len(passes)}")
            await ctx.sleep("wait", 60)
            return first

        with Harness() as harness:
            handle = harness.start(run)
            harness.run_due()
            harness.advance(61)
            harness.run_due()
            assert handle.result() == 2
            assert len(passes) == 2
            assert handle.history()[0].data[SUMMARY] == "pass 1"

    def test_the_newest_attempt_has_the_newest_text(self, flavour: Flavour) -> None:
        passes: list[int] = []

        @flavour
        async def run(ctx: Any) -> None:
            passes.append(1)
            text = f"attempt {len(passes)}"
            await ctx.try_step(
                "refuse", flavour.function(refuse), 1, summary=text, max_retries=1, retry_backoff_base=60
            )

        with Harness() as harness:
            handle = harness.start(run)
            harness.run_due()
            harness.advance(61)
            harness.run_due()
            assert len(passes) == 2
            assert handle.history()[0].data[SUMMARY] == "attempt 2"


class TestText:
    @pytest.mark.parametrize(
        ("given", "kept"),
        [
            ("Ada", "Ada"),
            ("Ada\n  Lovelace\t", "Ada Lovelace"),
            ("x" * 200, "x" * 200),
            ("x" * 201, "x" * 197 + "..."),
            ("", ""),
            ("\x00\ud800", "\x00\ud800"),
        ],
    )
    def test_it_is_one_line_of_bounded_length(self, given: str, kept: str) -> None:
        assert options_of({"summary": given}).summary == kept

    def test_another_type_is_refused(self) -> None:
        with pytest.raises(TypeError, match="summary is a line of text, not 7"):
            options_of({"summary": 7})

    def test_texts_do_not_fill_the_cache_of_options(self) -> None:
        first = options_of({"max_retries": 91})
        for number in range(2_000):
            options_of({"max_retries": 91, "summary": str(number)})
        assert options_of({"max_retries": 91}) is first


def initials(_workflow: str, field: str, value: Any) -> Any:
    return f"{value[0]}." if field == "summary" else value


class TestSurfaces:
    def test_pages_show_it_beside_the_name_and_escape_it(self, admin_page: Callable[..., str]) -> None:
        pass_once(bills.using(id="few").start(["Ada Lovelace", HOSTILE]))
        for part in ("timeline", "history"):
            text = admin_page("change", "few", part=part)
            assert '<span class="durable-summary">Ada Lovelace</span>' in text
            assert "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt; &amp; co" in text
            assert "<script>alert" not in text
            assert text.count("durable-summary") == 2
        assert "Ada Lovelace" in admin_page("step", "few", at="bill 0")

    def test_the_members_of_a_folded_place_are_told_apart(self, admin_page: Callable[..., str]) -> None:
        pass_once(bills.using(id="many").start([f"customer {chr(65 + n)}" for n in range(12)]))
        assert "durable-summary" not in admin_page("change", "many", part="timeline")
        opened = admin_page("change", "many", part="timeline", open="bill #")
        for n in range(12):
            assert f'<span class="durable-summary">customer {chr(65 + n)}</span>' in opened

    def test_the_command_line_and_its_json_have_it(self, db: None) -> None:
        pass_once(bills.using(id="told").start(["Ada", "Grace \ud800"]))
        [line] = [each for each in printed("show", "told").splitlines() if each.startswith("bill 0")]
        assert "Ada" in line
        history = json.loads(printed("show", "told", "-o", "json"))["history"]
        assert {each["location"]: each["summary"] for each in history} == {
            "plain": "",
            "bill 0": "Ada",
            "bill 1": "Grace \\ud800",
        }

    def test_a_redacted_file_of_the_history_has_it_as_the_hook_shows_it(self, db: None, settings: Any) -> None:
        pass_once(bills.using(id="filed").start(["Ada"]))
        assert '"summary":"(redacted)"' in printed("export", "filed", "--history", "--redact")
        settings.DURABLE = {**settings.DURABLE, "REDACT": f"{__name__}.initials"}
        assert '"summary":"A."' in printed("export", "filed", "--history", "--redact")

    def test_a_plain_step_pays_nothing(self, db: None) -> None:
        pass_once(bills.using(id="plain").start(["Ada"]))
        data = dict(Entry.objects.filter(run=Run.objects.get(pk="plain")).values_list("location", "data"))
        assert data == {"plain": {}, "bill 0": {SUMMARY: "Ada"}}
