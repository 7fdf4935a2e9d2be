"""A hung step from "Running now" to its stack and its end, in a real browser, with a worker that executes it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connections

from durable import Context, current_step, get_run, workflow
from durable.conf import conf
from durable.execution.passes import execute_pass
from durable.models import Activity, OperatorAction
from durable.store import store_for
from durable.worker.loop import InlinePool, WorkerLoop
from durable.worker.presence import ShutdownFlag
from tests.admin.pages import url
from tests.support.browsers import look
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = [
    pytest.mark.browser,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.redis,
    pytest.mark.django_db(transaction=True),
]

WAIT = 120_000  # milliseconds
LONG_NAME = "reconciliation of every account with the ledger of the bank, " * 2

begun: list[float] = []
go_on = threading.Event()


def call_bank() -> str:
    """The bank does not answer the first call."""
    begun.append(time.monotonic())
    while len(begun) == 1 and not go_on.is_set():
        time.sleep(0.01)
    return "answered"


@workflow(name="tests.browser.hung")
def hung(ctx: Context) -> Any:
    return ctx.step(LONG_NAME, call_bank, timeout=3000, max_retries=1, retry_backoff_base=0)


words: queue.SimpleQueue[Any] = queue.SimpleQueue()


def write() -> str:
    """Emit what the test says, until it says nothing more."""
    while (word := words.get()) is not None:
        if isinstance(word, Exception):
            raise word
        current_step().emit(word)
    return "written"


@workflow(name="tests.browser.writing")
def writing(ctx: Context) -> Any:
    return ctx.step("write <b>", write, max_retries=1, retry_backoff_base=0)


@pytest.fixture
def worker() -> Iterator[None]:
    hung.using(id="order-1").start()
    yield from working()


@pytest.fixture
def writer() -> Iterator[None]:
    while not words.empty():  # of the test before
        words.get()
    writing.using(id="text-1").start()
    yield from working(lambda: words.put(None))


def working(let_go: Callable[[], object] = go_on.set) -> Iterator[None]:
    begun.clear()
    go_on.clear()

    def work() -> None:
        try:
            with WorkerLoop(
                InlinePool(), store=store_for(conf.DATABASE), execute=execute_pass, stop=ShutdownFlag()
            ) as loop:
                loop.work("default", 600)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    yield
    let_go()
    thread.join(120)


def check(page: Page) -> None:
    """Look at the page in another one, which axe changes."""
    other = page.context.new_page()
    other.goto(page.url)
    look(other, "running")
    other.close()


def test_an_operator_finds_a_hung_step_looks_at_its_stack_and_abandons_it(
    sign_in: Callable[..., Page], complaints: list[str], worker: None
) -> None:
    eventually(lambda: Activity.objects.exists())
    page = sign_in(is_superuser=True, to=url("running"))
    check(page)
    page.get_by_role("link", name=LONG_NAME.strip()).click(timeout=WAIT)
    page.get_by_role("link", name="Ask for the stack").wait_for(timeout=WAIT)
    check(page)
    page.get_by_role("link", name="Ask for the stack").click(timeout=WAIT)
    page.get_by_label("Reason").fill("it hangs")
    page.get_by_role("button", name="Ask for the stack").click(timeout=WAIT)
    page.get_by_text("in call_bank").wait_for(timeout=WAIT)  # the page refreshes itself
    page.get_by_role("link", name="Interrupt and cancel").click(timeout=WAIT)
    assert page.get_by_label("Interrupt the running step").is_checked()
    page.go_back()
    places = page.get_by_role("navigation", name="Pages of durable")
    assert places.get_by_role("link", name="Running now").get_attribute("aria-current") == "true"
    places.get_by_role("link", name="Running now").click(timeout=WAIT)
    page.get_by_role("link", name="Interrupt and cancel").click(timeout=WAIT)
    assert page.get_by_label("Interrupt the running step").is_checked()
    page.get_by_role("link", name="Back, change nothing").click(timeout=WAIT)
    places.get_by_role("link", name="Running now").click(timeout=WAIT)
    page.get_by_role("link", name="Abandon", exact=True).click(timeout=WAIT)
    page.get_by_label("Reason").fill("the bank does not answer")
    page.get_by_role("button", name="Abandon the attempt").click(timeout=WAIT)
    eventually(lambda: get_run("order-1").state == "completed")
    assert list(OperatorAction.objects.order_by("id").values_list("action", "outcome")) == [
        ("take_stack", "done"),
        ("abandon", "done"),
    ]
    assert complaints == []


def test_the_page_of_a_run_shows_what_a_running_step_emits(
    sign_in: Callable[..., Page], complaints: list[str], writer: None
) -> None:
    """As it comes, without a reload; a new attempt begins anew, and the end takes the text away."""
    words.put("The lamp <img src=x> is ")
    eventually(lambda: Activity.objects.exists())
    page = sign_in(is_superuser=True, to=url("change", "text-1"))
    page.evaluate("window.isTheSame = true")
    emitted = page.locator("[data-durable-stream]")
    emitted.get_by_text("The lamp <img src=x> is").wait_for(timeout=WAIT)
    words.put("green,\nand ")
    words.put({"height": 12})
    emitted.get_by_text('green, and {"height": 12}').wait_for(timeout=WAIT)
    check(page)
    words.put(OSError("the pen broke"))
    words.put("The lamp is red")
    emitted.get_by_text("The lamp is red", exact=True).wait_for(timeout=WAIT)
    words.put("x" * 1_999 + "y")
    for _ in range(20):
        words.put("z" * 1_500)
    eventually(lambda: str(emitted.text_content()).endswith("z" * 1_500))
    eventually(lambda: len(str(emitted.text_content())) == 20_000)
    words.put(None)
    emitted.wait_for(state="detached", timeout=WAIT)
    assert page.evaluate("window.isTheSame")


def test_without_the_permission_to_see_payloads_nothing_is_shown(
    sign_in: Callable[..., Page], complaints: list[str], writer: None
) -> None:
    words.put("secret")
    eventually(lambda: Activity.objects.exists())
    page = sign_in("view_run", to=url("change", "text-1"))
    page.get_by_role("heading", name="write <b>").first.wait_for(timeout=WAIT)
    assert page.locator("[data-durable-stream]").count() == 0
    answer = page.request.get(f"{page.url.removesuffix('change/')}stream/?at=write%20%3Cb%3E")
    assert answer.status == 403
    assert "secret" not in answer.text()
