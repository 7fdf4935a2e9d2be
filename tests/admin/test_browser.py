"""Operators at work in a real browser, on a live server with live workers: no reloads, no complaints, no barriers."""

import re
import subprocess
from collections.abc import Callable, Iterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.db.models import F
from django.utils import timezone

from durable import get_run
from durable.models import Activity, OperatorAction, Run
from project.shop import checkout
from project.shop.models import Fault, Order, Product
from tests.admin import flows
from tests.admin.addresses import a_hung_step
from tests.admin.conftest import OPERATOR, MakeUser, Stage
from tests.admin.pages import url
from tests.support.browsers import CONTRAST, RULES, barriers, show_as, working
from tests.support.rollups import settle

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page
    from pytest_django.live_server_helper import LiveServer

pytestmark = [pytest.mark.browser, pytest.mark.e2e, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

WAIT = 120_000  # milliseconds
WIDE, NARROW = {"width": 1280, "height": 720}, {"width": 390, "height": 844}

LogIn = Callable[..., "Page"]
PASSWORD = "correct horse"


@pytest.fixture
def worker(child_environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker process on this test's database and Redis."""
    environment = {**child_environment, "SHOP_COOL_OFF": "1 second"}
    with working(environment, tmp_path / "worker.log") as process:
        yield process


def test_an_operator_mends_an_order_from_the_overview_to_the_end(
    sign_in: LogIn, worker: object, complaints: list[str]
) -> None:
    Fault.switch(Fault.Service.BANK, on=True)
    product = {"name": "Yarn", "description": "", "price": Decimal("4.20")}
    yarn, _ = Product.objects.get_or_create(slug="yarn", defaults=product)
    order = checkout.place_order("Ada", "ada@example.org", {yarn: 2})
    page = sign_in(is_superuser=True, to="/admin/durable/")
    loads: list[str] = []
    page.on("load", lambda loaded: loads.append(loaded.url))

    # the overview shows it without a reload, once the order waits for a person
    page.get_by_role("link", name="Recover this run").wait_for(timeout=WAIT)
    assert loads == []
    page.get_by_role("link", name="charge · ").click()
    page.get_by_role("link", name=order.run_id).click()
    page.get_by_text("waits for a person").first.wait_for(timeout=WAIT)

    # the switch that broke the bank
    page.goto("/admin/shop/fault/")
    row = page.locator("tr", has_text="bank")
    row.locator("input[type=checkbox][name$=is_on]").uncheck()
    page.get_by_role("button", name="Save").click()

    page.goto(url("change", order.run_id))
    page.get_by_role("link", name="Recover").click()
    page.get_by_role("textbox", name="Reason").fill("the bank is back")
    page.get_by_role("button", name="Recover", exact=True).click()
    page.wait_for_url("**/change/")
    page.wait_for_load_state()
    seen = len(loads)
    page.get_by_text("Waiting for a message in approved or rejected").first.wait_for(timeout=WAIT)
    assert len(loads) == seen  # it went on without a reload

    page.get_by_role("link", name="Send a message").click()
    page.get_by_label("Body (JSON)").fill('{"by": ada}')
    page.get_by_role("button", name="Send", exact=True).click()
    page.get_by_text("This is not JSON").wait_for()
    page.get_by_label("Body (JSON)").fill('{"by": "ada"}')
    page.get_by_role("button", name="Send", exact=True).click()
    page.wait_for_url("**/change/")
    page.wait_for_load_state()
    seen = len(loads)
    page.locator(".durable-headline .durable-completed").wait_for(timeout=WAIT)
    assert len(loads) == seen
    assert Order.objects.get().status == Order.Status.SENT

    # from a step on, as a new run
    page.get_by_role("link", name="History").click()
    page.get_by_role("link", name="hand over").click()
    page.get_by_role("link", name="Replay from here").click()
    page.get_by_role("heading", name="Steps that run again").wait_for()
    page.get_by_role("button", name="Replay", exact=True).click()
    page.wait_for_url("**/change/")
    page.locator(".durable-headline .durable-completed").wait_for(timeout=WAIT)
    assert Run.objects.filter(replay_of=order.run_id, state="completed").count() == 1
    done = OperatorAction.objects.filter(source="admin").order_by("id").values_list("action", "outcome")
    assert list(done) == [("recover", "done"), ("send", "done"), ("replay", "done")]
    # what the refused form answered is an error to the browser's console, and to nobody else
    assert [each for each in complaints if "422 (Unprocessable" not in each] == []


def test_all_runs_of_a_cause_are_recovered_with_two_clicks_from_the_overview(
    sign_in: LogIn, worker: object, complaints: list[str]
) -> None:
    Fault.switch(Fault.Service.BANK, on=True)
    product = {"name": "Yarn", "description": "", "price": Decimal("4.20")}
    yarn, _ = Product.objects.get_or_create(slug="yarn", defaults=product)
    orders = [checkout.place_order("Ada", "ada@example.org", {yarn: 2}) for _ in range(2)]
    page = sign_in(is_superuser=True, to="/admin/durable/")
    retry = page.get_by_role("link", name="Recover these 2")
    retry.wait_for(timeout=WAIT)
    Fault.switch(Fault.Service.BANK, on=False)
    retry.click()
    page.get_by_role("button", name="Recover", exact=True).click()
    page.locator(".durable-headline .durable-completed").wait_for(timeout=WAIT)
    done = OperatorAction.objects.filter(action="recover", outcome="done").values_list("run_id", flat=True)
    assert {order.run_id for order in orders} <= set(done)
    page.goto(page.url.partition("/run/")[0] + "/")
    page.get_by_text("All causes, muted ones too").wait_for()
    assert page.get_by_role("link", name="Recover these").count() == 0
    assert complaints == []


def test_many_runs_are_cancelled_after_their_number_is_typed(
    sign_in: LogIn, stage: Stage, complaints: list[str]
) -> None:
    flows.approve.start_many([()] * 101)
    page = sign_in(*OPERATOR, to=f"{url('changelist')}?workflow=tests.approve")
    page.get_by_label("all 101 that the filter finds").check()
    page.get_by_role("button", name="Cancel").click()
    page.get_by_text("Cancel 101 runs").wait_for()
    found = barriers(page)
    assert [each["id"] for each in found if each["impact"] in {"serious", "critical"}] == []
    complaints.clear()  # of the styles that axe tries to set
    page.get_by_role("textbox", name="Number of runs").fill("100")
    page.get_by_role("button", name="Cancel the runs").click()
    page.get_by_text("Type the number of runs that is shown above").wait_for()
    assert not Run.objects.filter(workflow="durable.bulk").exists()
    page.get_by_role("textbox", name="Number of runs").fill("101")
    page.get_by_role("button", name="Cancel the runs").click()
    page.get_by_text("It is done in the background").wait_for()
    assert Run.objects.filter(workflow="durable.bulk").count() == 1
    assert [each for each in complaints if "422 (Unprocessable" not in each] == []


def test_without_the_permission_nothing_is_offered_and_nothing_done(sign_in: LogIn, stage: Stage) -> None:
    stage.start(flows.approve, {"secret": 1}, id="run")
    page = sign_in("view_run", to=url("change", "run"))
    assert page.get_by_text("durable.view_payload").is_visible()
    assert page.get_by_role("link", name="Cancel").count() == 0
    page.goto(url("act", "run", "cancel"))
    assert page.get_by_role("heading", name="Not allowed").is_visible()
    assert get_run("run").state == "sleeping"


def test_without_javascript_everything_works_a_reload_at_a_time(
    chromium: "Browser", live_server: "LiveServer", make_user: MakeUser, stage: Stage
) -> None:
    make_user(*OPERATOR, password=PASSWORD)
    stage.start(flows.approve, id="run")
    with chromium.new_context(java_script_enabled=False) as context:
        context.set_default_timeout(WAIT)
        page = context.new_page()
        page.goto(f"{live_server.url}/admin/login/?next={url('change', 'run')}")
        page.get_by_label("Username").fill("ada")
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in").click()
        page.get_by_role("link", name="Send a message").click()
        page.get_by_role("button", name="Send", exact=True).click()
        page.get_by_text('A message was sent to "approved".').wait_for()
        stage.settle("run")
        page.reload()
        assert page.locator(".durable-headline .durable-completed").is_visible()


def test_a_timeline_is_opened_followed_and_shown_in_real_time(
    sign_in: LogIn,
    stage: Stage,
    complaints: list[str],
) -> None:
    flows.SWITCH["broken"] = True
    stage.start(flows.album, id="run")
    page = sign_in(*OPERATOR, to=url("change", "run"))
    table = page.get_by_role("table", name="Timeline")
    table.get_by_role("link", name="Open images, 30 times").click()
    page.wait_for_url("**open=images**")
    names = table.get_by_role("rowheader").all_inner_texts()
    assert names.index("image 28") < names.index("image 0")
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        found = barriers(page)
        assert [each["id"] for each in found if each["impact"] in {"serious", "critical"}] == []
    complaints.clear()  # of the styles that axe tries to set
    table.get_by_role("link", name="image 28", exact=True).click()
    page.wait_for_url("**image+28**")
    row = table.get_by_role("row").filter(has=page.get_by_role("link", name="watermark", exact=True))
    row.locator("svg a").click()
    page.get_by_role("heading", name="images / image 28 / sides / front / watermark").first.wait_for()
    assert page.get_by_role("link", name="Recover the run").is_visible()
    page.goto(url("change", "run"))
    page.get_by_role("link", name="real time").click()
    page.wait_for_url("**time=real**")
    page.get_by_role("link", name="gaps folded").wait_for()
    page.get_by_role("navigation", name="Parts of this page").get_by_role("link", name="Events").click()
    page.get_by_role("link", name="Newest first").click()
    page.wait_for_url("**order=newest**")
    assert page.get_by_role("region", name="Events").get_by_role("row").nth(1).inner_text().count("failed")
    assert complaints == []


def test_a_page_asks_while_it_is_seen_and_until_the_end(sign_in: LogIn, stage: Stage, complaints: list[str]) -> None:
    stage.start(flows.approve, id="run")
    page = sign_in(*OPERATOR, to=url("change", "run"))
    hide = """hidden => {
        Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
        document.dispatchEvent(new Event("visibilitychange"));
    }"""
    with page.expect_response("**/live/**") as unchanged:
        pass
    assert unchanged.value.status == 304
    page.evaluate(hide, True)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.wait_for_timeout(1500)
    assert asked == []
    page.get_by_text("Timeline", exact=True).first.wait_for()
    page.locator("#input > summary").click()  # closed by hand, and so it stays
    get_run("run").send("approved")
    stage.settle("run")
    page.evaluate(hide, False)
    page.locator(".durable-headline .durable-completed").wait_for(timeout=WAIT)
    assert page.locator("#input").get_attribute("open") is None
    asked.clear()
    page.wait_for_timeout(2500)
    assert asked == []  # a run that has ended is not asked about any more
    assert complaints == []


def test_reading_goes_on_while_the_page_is_patched(sign_in: LogIn, stage: Stage, complaints: list[str]) -> None:
    stage.start(flows.approve, {"lines": [f"line {number}" for number in range(400)]}, id="run")
    page = sign_in(*OPERATOR, to=url("change", "run"))
    read = page.locator("#input .durable-json")
    read.evaluate("""pre => {
        pre.scrollTop = 400;
        pre.focus({ preventScroll: true });
        getSelection().selectAllChildren(pre);
    }""")
    reading = """pre => ({
        scrolled: pre.scrollTop,
        selected: String(getSelection()).length,
        focused: document.activeElement === pre,
        around: scrollY,
    })"""
    before = read.evaluate(reading)
    assert before["scrolled"] == 400
    assert before["selected"] > 4000
    read.evaluate("pre => { pre.isKept = true }")  # as long as the element lives
    get_run("run").send("approved", "by hand")
    page.locator(".durable-tabs", has_text="Messages 1").wait_for(timeout=WAIT)
    assert read.evaluate(reading) == before
    get_run("run").cancel()
    page.locator(".durable-headline .durable-cancelled").wait_for(timeout=WAIT)
    assert read.evaluate(reading) == before
    assert read.evaluate("pre => pre.isKept")
    assert complaints == []


def test_times_from_now_go_on_by_themselves(sign_in: LogIn, stage: Stage) -> None:
    stage.start(flows.quick, id="run")
    stage.advance(seconds=75)
    page = sign_in(*OPERATOR, to=url("change", "run"))
    created = page.locator("dl time [data-durable-relative]").first
    texts = [created.inner_text()]
    while len(texts) < 3:
        page.wait_for_function(
            "([element, text]) => element.textContent !== text", arg=[created.element_handle(), texts[-1]]
        )
        texts.append(created.inner_text())
    assert all(re.fullmatch(r"1 m \d\d s ago", text) for text in texts), texts
    assert texts == sorted(texts)


def test_the_headline_counts_on(sign_in: LogIn, stage: Stage) -> None:
    a_hung_step(stage)
    Activity.objects.update(began_at=timezone.now() - timedelta(seconds=75))
    stage.start(flows.nap, id="asleep")
    stage.start(flows.quick, id="ended")
    Run.objects.filter(pk="ended").update(finished_at=timezone.now() - timedelta(seconds=75))
    page = sign_in(*OPERATOR)
    for run, pattern in (
        ("hung", r'Seems hung: running step "charge" for 1 m \d\d s \(timeout 9 s\)\.'),
        ("ended", r"Completed 1 m \d\d s ago, .*\."),
        ("asleep", r'Asleep in "cool off" until .*, in (3 h|2 h 59 m)\.'),
    ):
        page.goto(url("change", run))
        headline = page.locator("h1.durable-sentence")
        texts = [headline.inner_text()]
        if run != "asleep":
            page.wait_for_function(
                "([element, text]) => element.textContent !== text", arg=[headline.element_handle(), texts[0]]
            )
            texts.append(headline.inner_text())
        assert all(re.fullmatch(pattern, text) for text in texts), texts
        assert headline.locator("time").count() == 1
        assert page.locator("p.durable-hidden[role=status]").inner_text() == ""  # a change of the seconds is not told


def test_a_new_headline_is_announced_with_its_own_time(sign_in: LogIn, stage: Stage) -> None:
    a_hung_step(stage)
    page = sign_in(*OPERATOR, to=url("change", "hung"))
    page.get_by_text("for 1 h", exact=False).first.wait_for()
    began = timezone.now() - timedelta(minutes=7, seconds=5)  # the page counts whole seconds, from one before
    Activity.objects.update(began_at=began, attempt=2)
    Run.objects.filter(pk="hung").update(change_seq=F("change_seq") + 1)
    told = page.locator("p.durable-hidden[role=status]")
    page.wait_for_function("element => element.textContent", arg=told.element_handle(), timeout=WAIT)
    assert re.fullmatch(
        r'Seems hung: running step "charge", attempt 2, for 7 m( \d+ s)? \(timeout 9 s\)\.', told.inner_text()
    )


def test_the_list_follows_what_happens_unless_runs_are_being_chosen(
    sign_in: LogIn, stage: Stage, complaints: list[str]
) -> None:
    for number in range(2):
        stage.start(flows.approve, id=f"run-{number}")
    page = sign_in(*OPERATOR, to=url("changelist"))
    states = page.locator("#result_list .durable-state")
    get_run("run-0").cancel()
    page.locator("#result_list .durable-cancelled").wait_for(timeout=WAIT)
    page.get_by_label("Choose run run-1").check()
    get_run("run-1").cancel()
    page.wait_for_timeout(2500)
    assert page.get_by_label("Choose run run-1").is_checked()
    assert states.all_inner_texts().count("cancelled") == 1
    page.get_by_label("Choose run run-1").uncheck()
    page.locator("#result_list .durable-cancelled").nth(1).wait_for(timeout=WAIT)
    assert complaints == []


def test_a_filter_is_narrowed_and_widened_and_its_runs_are_chosen(
    sign_in: LogIn, stage: Stage, complaints: list[str]
) -> None:
    for number in range(3):
        stage.start(flows.approve, id=f"order-{number}")
    stage.start(flows.nap, id="nap")
    page = sign_in(*OPERATOR, to=url("changelist"))
    page.get_by_text("Add a filter").click()
    page.get_by_label("sleeping").check()
    page.get_by_role("combobox", name="Workflow").fill("tests.approve")
    page.get_by_role("button", name="Apply").first.click()
    page.get_by_role("heading", name="3 runs").wait_for()
    page.get_by_role("link", name="Workflow: tests.approve").click()
    page.get_by_role("heading", name="4 runs").wait_for()
    page.get_by_role("link", name="State: sleeping").wait_for()
    page.get_by_label("Choose all runs of this page").check()
    page.get_by_text("4 chosen").wait_for()
    page.get_by_label("Choose run nap").uncheck()
    page.get_by_text("3 chosen").wait_for()
    page.get_by_role("button", name="Pause").click()
    page.get_by_text("Pause 3 runs").wait_for()
    paused = Run.objects.filter(state="paused").order_by("pk").values_list("pk", flat=True)
    assert list(paused) == []
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_text("Pause: done for 3 runs.").wait_for()
    assert list(paused.all()) == ["order-0", "order-1", "order-2"]
    assert complaints == []


def test_names_of_old_code_are_suggested(sign_in: LogIn, stage: Stage, complaints: list[str]) -> None:
    Run.objects.create(id="old", workflow="acme.gone", queue="fax", input="[]", created_at=stage.now)
    page = sign_in(*OPERATOR, to=url("changelist"))
    page.get_by_text("Add a filter").click()
    known = page.locator("#known-workflow option[value='acme.gone']")
    assert known.count() == 0
    page.get_by_role("combobox", name="Workflow").press_sequentially("gone")
    known.wait_for(state="attached", timeout=WAIT)
    page.get_by_role("combobox", name="Workflow").fill("acme.gone")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="1 run").wait_for()
    assert complaints == []


def test_a_view_is_saved_and_opened_again(sign_in: LogIn, stage: Stage, complaints: list[str]) -> None:
    stage.start(flows.approve, id="order")
    stage.start(flows.quick, id="done")
    page = sign_in(*OPERATOR, "share_savedview", to=f"{url('changelist')}?state=sleeping")
    page.get_by_text("Views", exact=True).click()
    page.get_by_label("Save this view as").fill("waiting orders")
    page.get_by_label("for all users").check()
    page.get_by_role("button", name="Save").click()
    page.get_by_text("The view “waiting orders” is saved.").wait_for()
    page.get_by_role("link", name="Clear").click()
    page.get_by_role("heading", name="2 runs").wait_for()
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("link", name="waiting orders").click()
    page.get_by_role("heading", name="1 run").wait_for()
    page.get_by_role("link", name="State: sleeping").wait_for()
    page.get_by_text("Views", exact=True).click()
    page.get_by_role("button", name="Delete the view waiting orders").click()
    page.get_by_text("The view is deleted.").wait_for()
    assert complaints == []


def test_a_chart_is_one_stop_of_the_keyboard_and_says_what_a_bar_has(
    sign_in: LogIn, stage: Stage, complaints: list[str]
) -> None:
    for number, minutes in enumerate((40, 20)):
        end = stage.now - timedelta(minutes=minutes)
        ended = {"created_at": end - timedelta(seconds=2), "finished_at": end, "state": "completed"}
        Run.objects.create(id=f"run-{number}", workflow="w", queue="q", input="[]", **ended)
    settle(stage.now)
    page = sign_in(*OPERATOR, to="/admin/durable/")
    bars = page.locator("#ended-hour svg a")
    assert bars.count() == 2
    bars.last.focus()
    readout = page.locator("#ended-hour [data-durable-readout]")
    said = readout.inner_text()
    assert "1 completed, 0 failed, 0 cancelled" in said
    page.keyboard.press("ArrowLeft")
    assert bars.first.evaluate("each => each === document.activeElement")
    assert readout.inner_text() != said
    page.keyboard.press("Tab")
    assert not page.evaluate("document.activeElement.closest('#ended-hour svg') !== null")
    assert "Counted up to" in readout.inner_text()
    bars.first.focus()
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="1 run").wait_for()
    page.get_by_role("link", name="run-0").wait_for()
    assert complaints == []


def test_the_keyboard_goes_from_row_to_row_and_past_them(sign_in: LogIn, stage: Stage, complaints: list[str]) -> None:
    for number in range(20):
        stage.start(flows.approve, id=f"order-{number:02}")
        stage.advance(seconds=1)
    page = sign_in(*OPERATOR, to=url("changelist"))
    first = page.get_by_label("Choose run order-19")
    first.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Space")
    assert page.get_by_label("Choose run order-18").is_checked()
    page.keyboard.press("End")
    assert page.get_by_label("Choose run order-00").evaluate("each => each === document.activeElement")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "order-00"
    page.keyboard.press("ArrowUp")
    assert page.evaluate("document.activeElement.textContent") == "order-01"
    page.keyboard.press("Shift+Tab")
    assert page.get_by_label("Choose run order-01").evaluate("each => each === document.activeElement")
    page.keyboard.press("Tab")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('table')") is None
    assert complaints == []


def test_pages_have_no_barriers_light_and_dark_wide_and_narrow(
    sign_in: LogIn, stage: Stage, complaints: list[str]
) -> None:
    """What `test_browser_addresses.py` has not: lists with other columns, branches, retries, runs that wait."""
    flows.SWITCH["broken"] = True
    stage.start(flows.branches, id="branches")
    stage.start(flows.stubborn, id="retrying")
    stage.start(flows.approve, {"cat": "Mochi"}, id="waiting")
    page = sign_in(*OPERATOR)
    addresses = [
        f"{url('changelist')}?state=failed&state=sleeping&since=day&columns=state&columns=what&columns=wakes&sort=created_at",
        url("change", "branches"),
        url("change", "retrying"),
        *(f"{url('change', 'waiting')}?part={part}" for part in ("history", "messages")),
        f"{url('change', 'retrying')}?part=attempts",
        f"{url('replay', 'branches')}?at=ship/label/buy",
    ]
    found = []
    for address in addresses:
        page.goto(address)
        show_as(page, scheme="light", size=NARROW)
        wider = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wider <= 0, f"{address} is {wider} pixels wider than a telephone"
        assert complaints == []
        for scheme, rules in (("light", RULES), ("dark", CONTRAST)):
            show_as(page, scheme=scheme, size=WIDE)
            # the frame around our pages is the admin's own
            found += [
                (address, scheme, each["id"], node["html"][:160], node["any"][:1])
                for each in barriers(page, rules)
                if each["impact"] in {"serious", "critical"}
                for node in each["nodes"]
            ]
        complaints.clear()  # of the styles that axe tries to set
    assert found == [], "\n".join(map(str, found))
