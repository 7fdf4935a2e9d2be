"""Payloads on the pages: their size, folds, parts and downloads, and who may see them."""

import html
import json
import re
from datetime import timedelta
from typing import Any
from urllib.parse import quote as quote_words

import pytest
from django.contrib.admin.utils import quote
from django.test import Client
from django.urls import reverse
from pytest_django import Settings

from durable import get_run
from durable.admin.payload_page import _marked, folded_html
from durable.inspection.payloads import PAGE_BYTES, PayloadText
from durable.models import Activity, Run
from tests.admin import flows
from tests.admin.conftest import Stage
from tests.admin.pages import printed, statements, text_of, url

PARTS = ["timeline", "history", "events", "payloads", "attempts", "messages", "logs", "related", "audit"]


def downloaded(client: Client, run_id: str, **address: str) -> Any:
    response: Any = client.get(url("raw", run_id), address)
    assert response.status_code == 200
    assert response["X-Content-Type-Options"] == "nosniff"
    assert response["Content-Disposition"].startswith("attachment;")
    assert response["Content-Type"] == "application/json"
    assert "no-store" in response["Cache-Control"]
    text = b"".join(response.streaming_content) if response.streaming else response.content
    return json.loads(text)


class TestParts:
    @pytest.mark.parametrize("part", PARTS)
    def test_each_has_an_address_and_is_marked_as_the_open_one(self, stage: Stage, operator: Client, part: str) -> None:
        stage.start(flows.approve, id="run")
        page = operator.get(url("change", "run"), {"part": part})
        assert f"durable/admin/_run_{part}.html" in [each.name for each in page.templates]
        assert [each.name for each in page.context["parts"]] == PARTS
        tabs = text_of(page).partition("Parts of this page")[2].partition("</nav>")[0]
        assert tabs.partition('aria-current="true"')[0].count("<a ") == PARTS.index(part) + 1
        assert tabs.count('aria-current="true"') == 1

    def test_counts_stand_beside_their_titles(self, stage: Stage, operator: Client) -> None:
        flows.SWITCH["broken"] = True
        stage.start(flows.stubborn, id="run")
        get_run("run").send("news", 1)
        get_run("run").send("news", 2)
        get_run("run").pause()
        get_run("run").restart(id="again")
        counts = {each.name: each.count for each in operator.get(url("change", "run")).context["parts"]}
        assert counts["attempts"] == "1"
        assert counts["messages"] == "2"
        assert counts["audit"] == "2"  # the pause and the restart
        assert counts["history"] == str(Run.objects.get(pk="run").entries.count())

    def test_only_what_is_shown_is_asked_for(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, id="run")
        for part in PARTS:
            sql = " ".join(statements(operator, f"{url('change', 'run')}?part={part}"))
            assert ('"durable_queuemessage"."body"' in sql) == (part == "messages")
            assert ('"durable_attempt"."error"' in sql) == (part == "attempts")

    def test_failed_attempts_are_paged_with_their_errors(self, stage: Stage, operator: Client) -> None:
        flows.SWITCH["broken"] = True
        stage.start(flows.stubborn, id="run")
        page = text_of(operator.get(url("change", "run"), {"part": "attempts"}))
        assert "GatewayTimeout: no answer for 1" in page
        assert "in charge" in page  # of the traceback
        assert "Older" not in page

    def test_facts_lead_to_the_pages_of_workflow_and_queue(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, id="run")
        page = text_of(operator.get(url("change", "run")))
        for kind, name in (("workflow", flows.quick.name), ("queue", "default")):
            address = reverse(f"admin:durable_run_{kind}", args=[quote(name)])
            assert f'href="{address}"' in page
            assert operator.get(address).status_code == 200

    def test_the_run_that_failed_leads_to_its_cause(self, stage: Stage, operator: Client) -> None:
        flows.SWITCH["broken"] = True
        for number in range(3):
            stage.start(flows.switched, number, id=f"run-{number}")
        page = text_of(operator.get(url("change", "run-1")))
        assert "3 runs are failed or held for this cause" in page
        assert "/admin/durable/run/causes/" in page


class TestViewer:
    def test_a_payload_has_its_size_and_folds(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, {"cats": ["Mochi", "<b>Tama"], "age": 3}, id="run")
        page = text_of(operator.get(url("change", "run")))
        size = len(json.dumps(downloaded(operator, "run", of="input"), indent=2))
        assert f"{size} B" in page
        assert "<summary>" in page.partition('"durable-json"')[2]
        assert "&lt;b&gt;Tama" in page

    def test_what_is_folded_is_the_text(self) -> None:
        value: Any = {"a": [1, [], {"b": "x\ny"}], "ü": None, "empty": {}}
        html = str(folded_html(value, 1_000))
        text = PayloadText(value).text
        for tag in ("<details open>", "</details>", "<summary>"):
            html = html.replace(tag, "")
        assert re.sub(r" <span>\d</span></summary>", "\n", html.replace("&quot;", '"')) == text + "\n"

    def test_a_fold_that_is_cut_is_closed(self) -> None:
        html = folded_html({"a": {"b": ["x" * 100] * 10}}, 150)
        assert html.count("<details") == html.count("</details>") == 2
        assert len(html) < 400

    def test_a_large_one_is_shown_in_parts(self, stage: Stage, operator: Client) -> None:
        lines = [f"line {number}" for number in range(20_000)]
        stage.start(flows.quick, lines, id="run")
        page = text_of(operator.get(url("change", "run")))
        assert "line 10&quot;" in page
        assert "line 19999&quot;" not in page
        assert len(page) < 150_000
        address = url("payload", "run") + "?of=output"
        first = operator.get(address)
        parts = first.context["parts"]
        whole = "".join(operator.get(f"{address}&part={number + 1}").context["html"] for number in range(parts))
        assert json.loads(whole) == lines
        assert parts > 3
        assert max(len(text_of(operator.get(f"{address}&part={number + 1}"))) for number in range(parts)) < 400_000
        assert downloaded(operator, "run", of="output") == lines

    @pytest.mark.parametrize("length", [50, 1_000, 99_999])
    def test_parts_are_the_whole_text(self, length: int) -> None:
        text = PayloadText(["x" * 3_000, *range(5_000)])
        parts = text.parts(length)
        assert "".join(text.text[begin:end] for begin, end in parts) == text.text
        assert all(0 < end - begin <= length for begin, end in parts)

    def test_one_that_no_page_can_hold_can_be_downloaded(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, id="run")
        Run.objects.filter(pk="run").update(output=json.dumps("x" * PAGE_BYTES))
        for address in (url("change", "run"), url("payload", "run") + "?of=output"):
            assert "too large for this page" in text_of(operator.get(address))
        assert downloaded(operator, "run", of="output") == "x" * PAGE_BYTES

    def test_those_of_other_runs_take_no_room_on_its_page(self, stage: Stage, operator: Client) -> None:
        for name in ("run", "the one before it in the list"):
            stage.start(flows.quick, "shown here", id=name)
        Run.objects.exclude(pk="run").update(output=json.dumps("x" * (PAGE_BYTES - 2)))
        page = text_of(operator.get(url("change", "run")))
        assert page.count("shown here") == 2, "the input and the output"

    def test_bytes_are_shown_as_text(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, b"\x00\xff<b>", id="run")
        assert r"b&#x27;\\x00\\xff&lt;b&gt;&#x27;" in text_of(operator.get(url("change", "run")))
        assert downloaded(operator, "run", of="output") == repr(b"\x00\xff<b>")


class TestFinding:
    """Words of a payload on its page."""

    def test_the_places_are_listed_and_marked(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, {"cats": [{"name": "Mochi"}, {"name": "<b>"}], "best": "mochi"}, id="run")
        page = text_of(operator.get(url("payload", "run"), {"of": "output", "find": "MOCHI"}))
        assert "Found: 2" in page
        assert re.findall(r'<mark id="(.+?)">(.+?)</mark>', page) == [("found-1", "Mochi"), ("found-2", "mochi")]
        lines = re.findall(r'<a href="(.+?)">line (\d+)</a> <span class="durable-log-text">(.+?)</span>', page)
        assert lines == [
            ("?of=output&amp;find=MOCHI&amp;part=1#found-1", "4", "&quot;name&quot;: &quot;Mochi&quot;"),
            ("?of=output&amp;find=MOCHI&amp;part=1#found-2", "10", "&quot;best&quot;: &quot;mochi&quot;"),
        ]
        assert "<b>&quot;" not in page

    def test_the_page_opens_at_the_part_with_the_first_place(self, stage: Stage, operator: Client) -> None:
        lines = [f"line {number}" for number in range(20_000)]
        stage.start(flows.quick, lines, id="run")
        address = {"of": "output", "find": 'line 19999"'}
        page = operator.get(url("payload", "run"), address)
        assert page.context["number"] == page.context["parts"] > 3
        assert re.findall("<mark .+?>(.+?)</mark>", text_of(page)) == ["line 19999&quot;"]
        first = operator.get(url("payload", "run"), {**address, "part": "1"})
        assert first.context["number"] == 1
        assert "<mark" not in text_of(first)
        assert "&amp;part=2&amp;find=line+19999%22" in text_of(first)
        many = text_of(operator.get(url("payload", "run"), {"of": "output", "find": "line 1"}))
        assert many.count("<mark") == 1_000
        assert "Found: 1,000+" in many

    def test_what_two_parts_share_is_marked_in_both(self) -> None:
        text = PayloadText("x" * 100)
        marks = [_marked(text, part, [(45, 55)]) for part in ((0, 50), (50, 102))]
        assert [each.count("<mark") for each in marks] == [1, 1]
        assert "".join(re.sub("<.+?>", "", html.unescape(each)) for each in marks) == text.text

    def test_words_are_found_as_they_were_written(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.quick, ['say "yes" to C:\\temp', "a+b (c)"], id="run")
        for words in ('say "yes"', "C:\\temp", "A+B (C)", 'say \\"yes'):
            assert "Found: 1" in text_of(operator.get(url("payload", "run"), {"of": "output", "find": words})), words

    @pytest.mark.parametrize("words", ["nothing like it", "\0", "\ud800", "<script>", "x" * 500])
    def test_what_is_nowhere_is_told(self, stage: Stage, operator: Client, words: str) -> None:
        stage.start(flows.quick, {"cat": "Mochi"}, id="run")
        sent = quote_words(words, errors="surrogatepass")
        page = text_of(operator.get(f"{url('payload', 'run')}?of=output&find={sent}"))
        assert "Found nowhere." in page
        assert "<script>" not in page
        assert "Mochi" in page

    def test_only_what_is_shown_is_found(self, stage: Stage, operator: Client, settings: Settings) -> None:
        stage.start(flows.quick, {"secret": "alert"}, id="run")
        settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide"}
        page = text_of(operator.get(url("payload", "run"), {"of": "output", "find": "alert"}))
        assert "Found nowhere." in page


class TestAddresses:
    def test_each_kind_of_payload_has_one(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, {"cat": "Mochi"}, id="run")
        message = get_run("run").send("approved", {"by": "ada"})
        assert downloaded(operator, "run", of="input")["args"] == [{"cat": "Mochi"}]
        assert downloaded(operator, "run", of="message", id=message) == {"by": "ada"}
        assert downloaded(operator, "run", of="output", at="prepare") == {"cat": "Mochi"}
        assert downloaded(operator, "run", of="arguments", at="prepare") == [{"cat": "Mochi"}]
        page = text_of(operator.get(url("change", "run"), {"part": "messages"}))
        assert "of=message&amp;id=" in page
        titled = operator.get(url("payload", "run"), {"of": "message", "id": message})
        assert "<h1>Message of approved</h1>" in text_of(titled)
        step = text_of(operator.get(url("step", "run"), {"at": "prepare"}))
        assert "of=output&amp;at=prepare" in step

    def test_the_bodies_of_many_messages_are_folded(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, id="run")

        def unfolded() -> list[str]:
            page = text_of(operator.get(url("change", "run"), {"part": "messages"}))
            return re.findall(r'<details class="durable-payload"( open)?>', page)

        for number in range(5):
            get_run("run").send("other", number)
        assert unfolded() == [" open"] * 5
        get_run("run").send("other", 6)
        assert unfolded() == [""] * 6

    def test_what_a_step_has_saved_for_its_next_attempt(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.saving, id="run")
        assert downloaded(operator, "run", of="saved", at="import") == {"row": "row-five-hundred"}
        page = text_of(operator.get(url("step", "run"), {"at": "import"}))
        assert "saved for the next attempt" in page.lower()
        assert "RetryLater" in page

    @pytest.mark.parametrize(
        "address",
        [{}, {"of": "output"}, {"of": "error"}, {"of": "message", "id": "x"}, {"of": "output", "at": "nowhere"}],
    )
    def test_what_is_not_there_is_not_found(self, stage: Stage, operator: Client, address: dict[str, str]) -> None:
        stage.start(flows.approve, id="run")
        for name in ("payload", "raw"):
            assert "There is no such payload" in text_of(operator.get(url(name, "run"), address), 404)
            assert operator.get(url(name, "nobody"), address).status_code == 404

    def test_a_message_of_another_run_is_not_found(self, stage: Stage, operator: Client) -> None:
        stage.start(flows.approve, id="run")
        stage.start(flows.approve, id="other")
        message = get_run("other").send("approved", 1)
        assert operator.get(url("raw", "run"), {"of": "message", "id": message}).status_code == 404

    def test_the_redaction_hook_decides(self, stage: Stage, operator: Client, settings: Settings) -> None:
        stage.start(flows.quick, {"secret": "alert"}, id="run")
        settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.hide"}
        assert "alert" not in json.dumps(downloaded(operator, "run", of="output"))
        assert "alert" not in text_of(operator.get(url("payload", "run"), {"of": "output"}))


class TestSaves:
    """What a step has saved for its next attempt, beside its entry and where it runs for the first time."""

    def test_the_page_of_a_running_step_has_it(self, stage: Stage, operator: Client, log_in: Any) -> None:
        stage.start(flows.saving, id="run")
        running(stage, "run", "import")
        assert "&quot;row&quot;: &quot;row-five-hundred&quot;" in text_of(
            operator.get(url("running_step", "run"), {"at": "import"})
        )
        viewer = log_in("view_run", name="eve")
        assert "row-five-hundred" not in text_of(viewer.get(url("running_step", "run"), {"at": "import"}))

    def test_the_command_line_has_it_with_payloads(self, stage: Stage, settings: Settings) -> None:
        stage.start(flows.saving, id="run")
        assert '"row": "row-five-hundred"' in printed("show", "run", "-p")
        assert "row-five-hundred" not in printed("show", "run")
        shown = json.loads(printed("show", "run", "-p", "-o", "json"))
        assert shown["saved"] == {"import": {"row": "row-five-hundred"}}
        settings.DURABLE = {**settings.DURABLE, "REDACT": "tests.admin.redaction.broken"}
        assert "row-five-hundred" not in printed("show", "run", "-p")


def running(stage: Stage, run_id: str, location: str) -> None:
    """A worker has the run, and has been in this step for a minute."""
    stage.advance(hours=2)
    run = stage.claim(run_id)
    Activity.objects.create(
        run_id=run_id,
        location=location,
        attempt=2,
        kind="step",
        fence=run.fence,
        worker="host:4711:abc",
        began_at=stage.now - timedelta(minutes=1),
        timeout=600,
    )
