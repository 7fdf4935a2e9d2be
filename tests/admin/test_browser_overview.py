"""From "something is wrong" to mended, counted in clicks and scrolls; the pages of causes for every kind of reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.utils import timezone

from durable import Context, CriticalError, workflow
from durable.models import Cause, Failure, OperatorAction, Run
from durable.operations import Actor, acting_as, bulk
from tests.admin import flows
from tests.admin.conftest import OPERATOR, Stage
from tests.admin.pages import url
from tests.support.browsers import CONTRAST, RULES, barriers, complaints_of, show_as
from tests.support.rollups import settle

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

WAIT = 120_000  # milliseconds
WIDE = {"width": 1440, "height": 900}
NARROW = {"width": 390, "height": 844}
OF_ONE_CAUSE = 12
RECOVERED = (0, 4, 10, 49)  # of fifty causes
LONG = "order-" + "a-long-customer-reference-" * 7
#: The elements that reach beyond the window's right edge.
BEYOND = """[...document.querySelectorAll("body *")].filter(each => each.getBoundingClientRect().right > innerWidth)
    .map(each => each.outerHTML.slice(0, 120))"""


@pytest.fixture
def incident(stage: Stage) -> Iterator[str]:
    """Many failed runs of one cause, and older ones of others; the fingerprint of the first."""
    flows.SWITCH["broken"] = True
    stage.start(flows.saga, id="undone")
    stage.advance(hours=2)
    stage.start(flows.broken_branch, id=LONG)
    stage.advance(hours=1)
    for number in range(OF_ONE_CAUSE):
        stage.start(flows.switched, number, id=f"order-{number}")
        stage.advance(seconds=1)
    yield Failure.objects.get(run_id="order-0").cause.fingerprint
    flows.SWITCH["broken"] = False


def refuse() -> None:
    raise CriticalError("refused")


@workflow(name="tests.refused")
def refused(ctx: Context, place: str) -> None:
    ctx.step(f"step {place}", refuse)


@pytest.fixture
def ten_causes(stage: Stage) -> str:
    """Two failed runs of each of ten causes; what their places end with, the newest first."""
    for place in "jihgfedcba":
        for number in range(2):
            stage.start(refused, place, id=f"order-{place}-{number}")
            stage.advance(seconds=1)
    return "abcdefghij"


@pytest.fixture
def fifty_causes(stage: Stage) -> list[str]:
    """Failed runs of each of fifty causes, two of those that are recovered.

    Returns what their places end with, the newest first.
    """
    places = [f"{tens}{ones}" for tens in "abcde" for ones in "fghijklmno"]
    for place in reversed(places):
        for number in range(2 if places.index(place) in RECOVERED else 1):
            stage.start(refused, place, id=f"order-{place}-{number}")
            stage.advance(seconds=1)
    return places


@pytest.fixture
def operator_page(sign_in: Callable[..., Page]) -> Page:
    """A browser in which an operator is logged in, at no page yet."""
    page = sign_in(*OPERATOR)
    page.set_viewport_size(WIDE)  # type: ignore[arg-type]  # a dict like it
    return page


@pytest.fixture(params=[WIDE, NARROW], ids=["wide", "telephone"])
def is_wide(operator_page: Page, request: pytest.FixtureRequest) -> bool:
    operator_page.set_viewport_size(request.param)
    return bool(request.param is WIDE)


@dataclass
class Hand:
    """Counts what an operator does with a mouse: clicks, and scrolls to see what is to be read or clicked."""

    page: Page
    clicks: int = 0
    scrolls: int = 0

    def see(self, what: Locator) -> None:
        what.wait_for(timeout=WAIT)
        box = what.bounding_box()
        assert box is not None
        seen = self.page.evaluate("[scrollX, scrollY, innerWidth, innerHeight]")
        if box["y"] < 0 or box["y"] + box["height"] > seen[3]:
            self.scrolls += 1
            what.scroll_into_view_if_needed()

    def click(self, what: Locator) -> None:
        self.see(what)
        self.clicks += 1
        what.click()
        self.page.wait_for_load_state()

    @property
    def effort(self) -> int:
        return self.clicks + self.scrolls


def test_from_the_index_to_what_is_wrong_where_and_why_is_one_click(operator_page: Page, incident: str) -> None:
    hand = Hand(operator_page)
    operator_page.goto("/admin/")
    hand.see(operator_page.get_by_text("causes of failure need a person"))
    hand.click(operator_page.get_by_role("link", name="Durable 3 causes of failure"))
    hand.see(operator_page.get_by_role("heading", level=1, name="3 causes of failure need a person"))
    assert hand.effort == 1
    row = operator_page.locator(".durable-cause").first
    hand.see(row.get_by_text("charge · GatewayTimeout"))
    hand.see(row.get_by_text("no answer for #"))
    hand.see(row.get_by_text("tests.switched"))
    assert hand.effort == 1


def test_to_recover_one_run_from_the_overview_is_two_clicks(operator_page: Page, incident: str) -> None:
    operator_page.goto("/admin/durable/")
    hand = Hand(operator_page)
    hand.click(operator_page.locator(".durable-cause").first.get_by_role("link", name="recover it alone"))
    hand.click(operator_page.get_by_role("button", name="Recover", exact=True))
    operator_page.wait_for_url("**/change/", timeout=WAIT)
    assert hand.effort == 2
    newest = f"order-{OF_ONE_CAUSE - 1}"
    assert newest in operator_page.url
    assert list(Run.objects.filter(state="pending").values_list("id", flat=True)) == [newest]


def test_to_recover_all_runs_of_a_cause_from_the_overview_is_two_clicks(operator_page: Page, incident: str) -> None:
    operator_page.goto("/admin/durable/")
    hand = Hand(operator_page)
    hand.click(operator_page.get_by_role("link", name=f"Recover these {OF_ONE_CAUSE}"))
    hand.see(operator_page.get_by_text(f"Recover {OF_ONE_CAUSE} runs"))
    hand.click(operator_page.get_by_role("button", name="Recover", exact=True))
    operator_page.locator(".messagelist").wait_for(timeout=WAIT)
    assert hand.effort == 2
    [order] = Run.objects.filter(workflow="durable.bulk")
    assert incident in order.input


def test_to_recover_one_run_from_the_index_is_two_clicks(operator_page: Page, incident: str, is_wide: bool) -> None:
    hand = Hand(operator_page)
    operator_page.goto("/admin/")
    row = operator_page.locator(".durable-incidents > li").first
    hand.see(row.get_by_text("charge · GatewayTimeout").first)  # what, where and why, before any click
    hand.see(row.get_by_text("no answer for #").first)
    hand.click(row.get_by_text(f"Recover these {OF_ONE_CAUSE}"))
    row.get_by_label("Reason").fill("the bank is back")
    hand.click(row.get_by_role("button", name="Only the newest"))
    operator_page.wait_for_url("**/change/", timeout=WAIT)
    assert hand.effort == 2
    newest = f"order-{OF_ONE_CAUSE - 1}"
    assert list(Run.objects.filter(state="pending").values_list("id", flat=True)) == [newest]
    assert list(OperatorAction.objects.values_list("run_id", "action", "outcome", "reason")) == [
        (newest, "recover", "done", "the bank is back")
    ]


def test_to_recover_all_runs_of_a_cause_from_the_index_is_two_clicks(
    operator_page: Page, incident: str, is_wide: bool
) -> None:
    hand = Hand(operator_page)
    operator_page.goto("/admin/")
    row = operator_page.locator(".durable-incidents > li").first
    hand.click(row.get_by_text(f"Recover these {OF_ONE_CAUSE}"))
    hand.click(row.get_by_role("button", name="Recover", exact=True))
    operator_page.locator(".messagelist").wait_for(timeout=WAIT)
    assert hand.effort == 2
    [order] = Run.objects.filter(workflow="durable.bulk")
    assert incident in order.input


@pytest.mark.parametrize(
    ("place", "verb", "is_wide"),
    [
        *((0, "Recover", WIDE), (0, "Only the newest", NARROW), (4, "Recover", NARROW), (4, "Only the newest", WIDE)),
        *((9, "Recover", WIDE), (9, "Only the newest", NARROW)),
    ],
    ids=lambda value: ("wide" if value is WIDE else "telephone") if isinstance(value, dict) else None,
    indirect=["is_wide"],
)
def test_each_of_ten_causes_is_recovered_from_the_index_with_two_clicks(
    operator_page: Page, ten_causes: str, is_wide: bool, place: int, verb: str
) -> None:
    hand = Hand(operator_page)
    operator_page.goto("/admin/")
    rows = operator_page.locator(".durable-incidents > li")
    assert rows.count() == 10
    hand.see(rows.nth(place).get_by_role("link", name=f"step {ten_causes[place]} · CriticalError"))
    assert hand.effort == 0
    hand.click(rows.nth(place).get_by_text("Recover these 2"))
    hand.click(rows.nth(place).get_by_role("button", name=verb, exact=True))
    operator_page.locator(".messagelist").wait_for(timeout=WAIT)
    assert hand.effort == 2
    if verb == "Only the newest":
        assert Run.objects.get(state="pending").id == f"order-{ten_causes[place]}-1"
    else:
        [order] = Run.objects.filter(workflow="durable.bulk")
        assert Cause.objects.get(place=f"step {ten_causes[place]}").fingerprint in order.input


def test_each_of_fifty_causes_is_recovered_from_the_index_with_two_clicks(
    operator_page: Page, fifty_causes: list[str], is_wide: bool
) -> None:
    """On a wide window none of them takes a scroll, on a telephone the last ones take one."""
    efforts = {}
    for place, verb in [(place, verb) for place in RECOVERED for verb in ("Recover", "Only the newest")]:
        name = fifty_causes[place]
        operator_page.goto("/admin/")
        hand = Hand(operator_page)
        title = operator_page.get_by_role("link", name=f"step {name} · CriticalError", exact=True)
        hand.see(title)
        row = operator_page.locator(".durable-incidents li").filter(has=title).last
        if place < 5:
            hand.click(row.get_by_text("Recover these 2"))
            hand.click(row.get_by_role("button", name=verb, exact=True))
        else:
            opened = "Recover these 2" if verb == "Recover" else verb
            hand.click(row.get_by_role("link", name=f"{opened}: step {name}"))
            hand.click(operator_page.get_by_role("button", name="Recover", exact=True))
        operator_page.locator(".messagelist").wait_for(timeout=WAIT)
        efforts[place, verb] = (hand.clicks, hand.scrolls)
        if verb == "Recover":
            order = Run.objects.filter(workflow="durable.bulk").latest("created_at")
            assert Cause.objects.get(place=f"step {name}").fingerprint in order.input
        else:
            assert Run.objects.get(pk=f"order-{name}-1").state == "pending"
    last = (2, 0) if is_wide else (2, 1)
    assert efforts == {key: last if key[0] == 49 else (2, 0) for key in efforts}
    assert len(efforts) == 2 * len(RECOVERED)


def test_the_overview_is_used_with_the_keyboard_alone(operator_page: Page, incident: str) -> None:
    operator_page.goto("/admin/durable/")
    operator_page.keyboard.press("Tab")
    assert operator_page.evaluate("document.activeElement.className") == "skip-to-content-link"
    operator_page.keyboard.press("Enter")
    verb = operator_page.get_by_role("link", name=f"Recover these {OF_ONE_CAUSE}")
    for _ in range(20):
        operator_page.keyboard.press("Tab")
        if verb.evaluate("each => each === document.activeElement"):
            break
    outline = operator_page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    operator_page.keyboard.press("Enter")
    operator_page.wait_for_url("**/bulk/**", timeout=WAIT)


def addresses(cause: str) -> list[str]:
    return ["/admin/", "/admin/durable/", url("causes"), url("cause", cause)]


#: Those in which a branch differs from a run without one, which `test_browser_addresses.py` has.
PARTS = ("timeline", "history", "events", "attempts")


def test_no_part_of_a_page_is_a_barrier_however_small(operator_page: Page, incident: str) -> None:
    found = []
    others = [url("running"), url("workers"), *(f"{url('change', LONG)}?part={part}" for part in PARTS)]
    for address in [*addresses(incident), url("changelist"), *others]:
        operator_page.goto(address)
        for scheme, rules in (("light", RULES), ("dark", CONTRAST)):
            show_as(operator_page, scheme=scheme, size={"width": 1280, "height": 720})
            violations = barriers(operator_page, rules)
            found += [
                (address, scheme, each["id"], node["html"][:160]) for each in violations for node in each["nodes"]
            ]
    assert found == [], "\n".join(map(str, found))


def test_pages_fit_on_a_telephone_with_names_of_any_length(operator_page: Page, incident: str) -> None:
    complaints = complaints_of(operator_page)
    with acting_as(Actor("cli", label="ada"), reason="x" * 300):
        a_bulk = bulk.apply("pause", ["order-0"]).bulk_id
    for address in [
        *addresses(incident),
        url("changelist"),
        url("change", LONG),
        url("act", LONG, "recover"),
        f"{url('bulk')}?verb=recover&all=on&filter=%3Fcause%3D{incident}",
        f"{url('changelist')}?q=nothing-is-called-so",
        f"{url('changelist')}?state=completed",
        url("bulk_result", a_bulk),
    ]:
        operator_page.goto(address)
        for width in (390, 320):
            operator_page.set_viewport_size({"width": width, "height": 800})
            if operator_page.evaluate("document.documentElement.scrollWidth - innerWidth") > 0:
                pytest.fail(f"{address} at {width}: {operator_page.evaluate(BEYOND)}")
    assert complaints == []


@pytest.mark.parametrize("language", ["en", "de"])
def test_pages_fit_on_a_telephone_with_all_parts_open(
    operator_page: Page, incident: str, stage: Stage, language: str
) -> None:
    Run.objects.exclude(finished_at=None).update(finished_at=timezone.now() - timedelta(minutes=10))
    settle(timezone.now())
    operator_page.set_extra_http_headers({"Accept-Language": language})
    operator_page.set_viewport_size({"width": 320, "height": 800})
    for address in [*addresses(incident), url("changelist"), url("change", "undone"), url("workflow", "tests.saga")]:
        operator_page.goto(address)
        operator_page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        wider = operator_page.evaluate(BEYOND)
        assert operator_page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{address}: {wider}"
        if address == "/admin/durable/":
            assert operator_page.locator("figure details table").count() > 0


@pytest.mark.parametrize("language", ["en", "de"])
def test_the_list_has_all_its_columns_in_sight(operator_page: Page, incident: str, language: str) -> None:
    operator_page.set_extra_http_headers({"Accept-Language": language})
    operator_page.goto(f"{url('changelist')}?children=true")
    undone = {"en": "failed, undone", "de": "fehlgeschlagen, rückgängig gemacht"}[language]
    operator_page.get_by_text(undone).first.wait_for()
    hidden = "[...document.querySelectorAll('.durable-scroll')].map(each => each.scrollWidth - each.clientWidth)"
    for width in (1440, 1366, 1280, 1024):
        operator_page.set_viewport_size({"width": width, "height": 800})
        assert operator_page.evaluate(hidden) == [0], width


def test_states_and_verbs_keep_their_shapes_where_the_browser_replaces_colours(
    operator_page: Page, incident: str
) -> None:
    operator_page.emulate_media(forced_colors="active")
    operator_page.goto("/admin/durable/")
    shapes = operator_page.locator(".durable-counts .durable-state").evaluate_all(
        """states => states.map(each => {
            const shape = getComputedStyle(each, "::before");
            const canvas = getComputedStyle(document.body).backgroundColor;
            const isFilled = shape.backgroundColor !== canvas && shape.backgroundColor !== "rgba(0, 0, 0, 0)";
            return isFilled || shape.backgroundImage !== "none" || parseFloat(shape.borderLeftWidth) > 0;
        })"""
    )
    assert len(shapes) == 8
    assert all(shapes)
    operator_page.goto(f"{url('changelist')}?state=failed")  # no verb of the overview comes first
    edges = operator_page.locator("#content .button").evaluate_all(
        "buttons => buttons.map(each => parseFloat(getComputedStyle(each).borderTopWidth))"
    )
    assert min(edges) >= 1
    assert max(edges) >= 2  # the first verb is told from the others by its edge


def test_a_page_is_printed_without_its_menus_and_verbs(operator_page: Page, incident: str) -> None:
    operator_page.emulate_media(media="print")
    operator_page.goto(addresses(incident)[3])
    assert operator_page.get_by_text("no answer for #").first.is_visible()
    assert operator_page.get_by_text("order-3").first.is_visible()
    for gone in ("#header", ".durable-places", ".durable-verbs", ".submit-row"):
        assert not operator_page.locator(gone).first.is_visible(), gone
