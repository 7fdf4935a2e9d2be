"""Names and texts that hide or reorder what stands around them: shown by number, or isolated, on every page."""

import os
import re
import subprocess

import pytest
from django.test import Client

from durable import Context, get_run, workflow
from durable.admin.text import with_visible_text
from durable.core.errors import CriticalError
from durable.inspection.wording import command
from tests.admin.conftest import Stage
from tests.admin.flows import value_of
from tests.admin.pages import text_of, url

HEBREW = "\u05d0\u05d1\u05d2"
EVIL = f"a/\u202e b\u2066\u200dc \N{FAMILY} {HEBREW}"
RAW = re.compile("[\u202a-\u202e\u2066-\u2069\u200e\u200f]|a\u200d|\u200dc")
CODE = r"a/\u202e b\u2066\u200dc"


@workflow(name=f"tests.hostile {EVIL}")
def hostile(ctx: Context) -> None:
    ctx.step(EVIL, value_of, EVIL)
    ctx.queue.next(f"wait {EVIL}", names=[EVIL])
    raise CriticalError(EVIL)


def texts_of(page: str) -> str:
    """The page without values of attributes, text areas and options."""
    page = re.sub(r"<textarea.*?</textarea>|<title>.*?</title>|<option.*?</option>", "", page, flags=re.DOTALL)
    return re.sub(r"<(?!/?bdi>)[^>]*>", "|", page)


def test_every_page_isolates_hostile_names(stage: Stage, operator: Client) -> None:
    run_id = f"run-{HEBREW}"
    stage.start(hostile, id=run_id)
    waiting = [url("send", run_id)]
    pages = [operator.get(page) for page in waiting]
    get_run(run_id).send(EVIL, EVIL)
    run = stage.settle(run_id)
    assert run.state == "failed", run.summary
    location = "a%2F" + EVIL[2:]
    addresses = [
        url("changelist"),
        url("change", run_id),
        url("live", run_id),
        url("step", run_id) + "?at=" + location.replace("%", "%25"),
        url("act", run_id, "recover"),
        url("replay", run_id) + "?at=" + location.replace("%", "%25"),
        url("overview"),
        "/admin/durable/",
    ]
    for page in [*pages, *(operator.get(address) for address in addresses)]:
        text = texts_of(text_of(page))
        assert RAW.search(text) is None, page.request["PATH_INFO"]
        assert CODE in text, page.request["PATH_INFO"]
        isolated = re.sub(r"<bdi>[^<]*</bdi>", "", text)
        assert HEBREW not in isolated, page.request["PATH_INFO"]


def test_the_audit_log_too(stage: Stage, operator: Client) -> None:
    stage.start(hostile, id=f"run-{HEBREW}")
    get_run(f"run-{HEBREW}").cancel(reason=EVIL)
    text = texts_of(text_of(operator.get("/admin/durable/operatoraction/")))
    assert CODE in text
    assert RAW.search(text) is None
    assert HEBREW not in re.sub(r"<bdi>[^<]*</bdi>", "", text)


@pytest.mark.parametrize(
    ("html", "shown"),
    [
        ("<p>plain</p>", "<p>plain</p>"),
        ("<b title='\u202e'>x</b>", "<b title='\u202e'>x</b>"),  # an attribute's value is sent back by forms
        ("<textarea>\u202e</textarea>", "<textarea>\u202e</textarea>"),
        ("<option>\u202e" + HEBREW + "</option>", r"<option>\u202e" + HEBREW + "</option>"),
        (
            f"<p>in {HEBREW} until 42, or {HEBREW}</p>",
            f"<p>in <bdi>{HEBREW}</bdi> until 42, or <bdi>{HEBREW}</bdi></p>",
        ),
        ("<p>\U0001f469\u200d\U0001f680 \u0915\u094d\u200d\u0937</p>",) * 2,  # what a joiner is there for
    ],
)
def test_texts_are_shown_and_values_stay(html: str, shown: str) -> None:
    assert with_visible_text(html) == shown


@pytest.mark.parametrize("word", [EVIL, "it's \\ \u202e1", "plain", "a b", "\x1b[2J", "\U000e0041x"])
def test_a_command_to_copy_holds_nothing_hidden_and_means_the_same(word: str) -> None:
    line = command("show", word)
    assert RAW.search(line) is None
    assert "\x1b" not in line
    quoted = line.removeprefix("python manage.py durable show ")
    environment = {**os.environ, "LC_ALL": "C.UTF-8"}
    said = subprocess.run(["bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True, env=environment)
    assert said.stdout.decode() == word
