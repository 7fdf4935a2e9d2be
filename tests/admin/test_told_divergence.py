"""Where code and history part, told in the language of the page.

It is made from the text that the engine has stored in English.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.test import Client
from django.utils import translation

from durable import Context, workflow
from durable.conf import conf
from durable.core.summary import Summary
from durable.inspection.explain_states import explain_fully
from durable.inspection.wording import told_divergence
from durable.models import Run
from tests.admin.conftest import Stage
from tests.admin.pages import text_of, url

pytestmark = pytest.mark.django_db


def value() -> int:
    return 1


def as_recorded(ctx: Context) -> None:
    ctx.step("first", value)
    ctx.step("second", value)
    ctx.sleep("a night", "8 hours")


def with_another_step(ctx: Context) -> None:
    ctx.step("first", value)
    ctx.step("check, and: wait", value)
    as_recorded(ctx)


def without_both(ctx: Context) -> None:
    ctx.sleep("a night", "8 hours")


def without_an_end(ctx: Context) -> None:
    ctx.step("first", value)


def with_another_kind(ctx: Context) -> None:
    ctx.sleep("first", "8 hours")


CODE: dict[str, Callable[[Context], None]] = {"now": as_recorded}

#: The code that comes later, and what is told of it in German.
LATER = {
    with_another_step: (
        "in der Wurzel: Der Code kommt zum Eintrag „check, and: wait“ (Schritt), der nicht in der Historie steht; sie geht "
        'mit "second", "a night" weiter'
    ),
    without_both: (
        "in der Wurzel: Der Code kommt zum Eintrag „a night“ (Pause), der nicht beendet ist; die Historie hat davor "
        '"first", "second"'
    ),
    without_an_end: 'in der Wurzel: Der Code ist zu Ende, doch die Historie geht mit "second", "a night" weiter',
    with_another_kind: "in der Wurzel: Erwartet wurde bei „first“: Pause; gefunden wurde: Schritt",
}
ADVICE_BEGINS = "Der Code hat sich geändert, seit diese Historie aufgezeichnet wurde"


@workflow(name="tests.parting")
def parting(ctx: Context) -> None:
    CODE["now"](ctx)


@pytest.fixture(autouse=True)
def _as_recorded() -> Iterator[None]:
    CODE["now"] = as_recorded
    yield
    CODE["now"] = as_recorded


def diverged(stage: Stage, later: Callable[[Context], None]) -> Run:
    stage.start(parting, id="run")
    CODE["now"] = later
    stage.advance(hours=9)
    return stage.run("run")


@pytest.mark.parametrize("later", LATER)
def test_a_page_tells_it_in_its_language(stage: Stage, operator: Client, later: Any) -> None:
    run = diverged(stage, later)
    english = explain_fully(run, stage.now).detail
    assert english.startswith(f"{Summary.load(run.summary).facts['error']}. If no deploy is under way")
    with translation.override("en"):  # the request leaves its language behind
        page = text_of(operator.get(url("change", "run"), headers={"Accept-Language": "de"}))
    assert LATER[later].replace('"', "&quot;") in page
    assert ADVICE_BEGINS in page
    assert "the code" not in page.partition('id="content-main"')[2].partition("Zeitachse")[0]


def test_a_failed_run_tells_it_to_its_end_too(stage: Stage) -> None:
    diverged(stage, with_another_step)
    stage.advance(seconds=conf.DIVERGENCE_GRACE + 1)
    run = stage.run("run")
    assert run.state == "failed"
    english = explain_fully(run, stage.now).detail
    assert english.startswith("HistoryDivergedError: in the root: the code comes to the step ")
    assert "branch on ctx.get_version(name, latest). Nothing was compensated" in english
    with translation.override("de"):
        german = explain_fully(run, stage.now).detail
    assert german.startswith(f"HistoryDivergedError: {LATER[with_another_step]}. {ADVICE_BEGINS}")


@pytest.mark.parametrize("text", ["", "hidden", "in the root: something else", "in a: the code ended"])
def test_any_other_text_stays(text: str) -> None:
    with translation.override("de"):
        assert told_divergence(text) == text
