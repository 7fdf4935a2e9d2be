"""What happens in the demo, from the first order to the verdict. Holds the order of events and nothing else."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from threading import Event
from types import FrameType
from typing import Any

import redis
from django.conf import settings
from django.contrib.admin.utils import quote
from django.core.management import call_command
from django.core.servers.basehttp import ThreadedWSGIServer
from django.urls import reverse
from rich.console import Console

from durable import Handle, get_run
from durable.conf import conf
from durable.operations.schedules import verbs
from project.demo import environment
from project.demo.display import Display, OrderLine
from project.demo.scene import Scene
from project.demo.serving import bind, demo_login, make_colleague, serve
from project.demo.tree import history_tree
from project.demo.verdict import judge, judge_cart, judge_report, judge_syncs
from project.demo.workers import Workers
from project.shop import checkout
from project.shop.models import Fault, Order, Product

__all__ = ["tell"]

SCHEDULE = "shop.nightly"
TICK = 0.1
BETWEEN_ORDERS = 0.3
PATIENCE = 45.0  # seconds for all orders to end, after the last one was placed
HUNT = 10.0  # seconds in which a worker must be caught with a run in its hands


def tell(*, count: int, port: int | None) -> bool:
    """The whole demo; whether all its promises held. With a `port`, serves the shop afterwards until interrupted."""
    console = Console(highlight=False)
    logs = environment.directory()
    with ExitStack() as stack:
        stack.enter_context(environment.leash())
        interrupted = stack.enter_context(_signals_interrupt())
        server = None if port is None else stack.enter_context(bind(port))
        if server is not None:  # links in mails, and the one that the bank gets, lead here
            os.environ["BASE_URL"] = f"http://127.0.0.1:{server.server_port}"
        workers = stack.enter_context(Workers(logs, processes=3))
        call_command("migrate", verbosity=0)
        may_flush = _redis_is_empty()
        workers.start()
        demo = _Demo(console, workers, interrupted, may_flush=may_flush)
        held = demo.play(count)
        if not held:
            console.print("The workers wrote:", *workers.logged().splitlines()[-40:], sep="\n", markup=False)
        if server is not None:
            if server.server_port != port:
                console.print(f"\nPort {port} is taken; using {server.server_port}.")
            _serve(console, server, demo.shipped)
    return held


class _Demo:
    """The orders, the trouble, and the verdict."""

    def __init__(self, console: Console, workers: Workers, interrupted: Event, *, may_flush: bool) -> None:
        self._console = console
        self._workers = workers
        self._interrupted = interrupted
        self._scene = Scene()
        self._display = Display(console)
        self._orphans: list[str] = []
        self._may_flush = may_flush
        self._report: Handle[Any] | None = None

    @property
    def shipped(self) -> str:
        """The run of an order that was sent."""
        rejected = self._scene.rejected
        return next((order.run_id for order in self._scene.orders if order.pk not in rejected), "")

    def play(self, count: int) -> bool:
        """Let `count` orders flow; whether all was well."""
        with self._display, _first_attempts_fail():
            self._say(
                f"{self._workers.processes} worker processes start; the carrier fails the first attempt of each label."
            )
            self._say("The bank charges each card and does not answer; it is asked then whether it has.")
            self._let_flow(count)
            self._make_report()
        return self._conclude()

    def _let_flow(self, count: int) -> None:
        due = time.monotonic()
        deadline = due + count * BETWEEN_ORDERS + PATIENCE
        trouble = iter(self._make_trouble(count))
        lines: list[OrderLine] = []
        while time.monotonic() < deadline:
            # The second order waits for the first to be taken up: until then the workers are still starting.
            if self._scene.placed < count and time.monotonic() >= due and all(line.is_begun for line in lines[:1]):
                due = time.monotonic() + BETWEEN_ORDERS
                self._scene.place_one(reject=self._scene.placed == count // 3)
                if self._scene.placed == 1:
                    self._say("Three syncs of one customer: each waits until the one before has ended.")
                if self._scene.placed == 2 and self._scene.cart is not None:
                    self._say(f"Three clicks fill one cart, run {self._scene.cart.id}, which is ordered.")
            was_begun, lines = any(line.is_begun for line in lines), self._scene.look()
            if not was_begun and any(line.is_begun for line in lines):  # the workers have started, however slowly
                deadline = time.monotonic() + count * BETWEEN_ORDERS + PATIENCE
            for order, verdict in self._scene.answer_waiting():
                if verdict == "rejected":
                    self._say(f"The shopkeeper rejects order {order.pk}: its charge will be undone.", "yellow")
            next(trouble, None)
            self._display.show(lines)
            if len(lines) == count and all(line.is_ended for line in lines):
                return
            if self._interrupted.wait(TICK):
                raise KeyboardInterrupt
        self._say("Time is up, and not every order has ended.", "bold red")

    def _make_trouble(self, count: int) -> Iterator[None]:
        """Once half of the orders are placed: kill a worker with an order in its hands, then empty Redis."""
        while self._scene.placed < (count + 1) // 2:
            yield
        hunted_until = time.monotonic() + HUNT
        while not (held := self._scene.held_by(self._workers.pids)):
            if time.monotonic() > hunted_until:
                self._say("No worker has an order in its hands; none is killed.", "bold red")
                return
            yield
        pid, self._orphans = held
        self._workers.kill(pid)
        self._say(f"SIGKILL for worker process {pid}, which held {', '.join(self._orphans)}.", "bold red")
        self._say(f"Another one takes over when the lease of {conf.LEASE:g} s has run out.", "red")
        yield
        self._flush_redis()
        for run_id in self._orphans:
            while (heir := self._scene.holder(run_id)) in {None, pid}:
                yield
            self._say(f"{run_id} goes on in worker process {heir}.", "green")

    def _make_report(self) -> None:
        """Run the schedule of the nightly report now, and wait for its run."""
        self._say(f'The schedule "{SCHEDULE}" is run now; by itself it runs each night at half past two.')
        tick = verbs.run_now(SCHEDULE, force=True)
        self._report = get_run(tick.run_id)
        self._wait_for([self._report, *self._scene.syncs])

    def _wait_for(self, runs: Sequence[Handle[Any]]) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and any(run.info().finished_at is None for run in runs):
            if self._interrupted.wait(TICK):
                raise KeyboardInterrupt

    def _flush_redis(self) -> None:
        if not self._may_flush:
            self._say("This Redis holds what is not the demo's, and is left alone. An empty one would be flushed now.")
            return
        with redis.Redis.from_url(settings.REDIS_URL) as client:
            client.flushdb()
        self._say("Redis flushed: every RQ job is gone. The sweep finds the runs in the database.", "bold red")

    def _conclude(self) -> bool:
        self._print_history("The history of an order whose worker was killed", self._orphans[:1])
        self._print_history("The history of an order that was rejected", [f"order-{pk}" for pk in self._scene.rejected])
        self._console.print("\nChecked in the rows:")
        scene = self._scene
        findings = [*judge(scene.orders, scene.rejected), judge_syncs(scene.syncs)]
        if scene.cart is not None:
            findings.append(judge_cart(scene.clicks, scene.cart_order))
        if self._report is not None:
            findings.append(judge_report(self._report, scene.orders, scene.rejected))
        for finding in findings:
            mark = "[green]✓[/]" if finding.held else "[bold red]✗[/]"
            self._console.print(f"{mark} {finding.promise} ({finding.found})", soft_wrap=True)
        held = all(finding.held for finding in findings)
        self._console.print("[bold green]All held.[/]" if held else "[bold red]Not all held.[/]")
        return held

    def _print_history(self, title: str, run_ids: Sequence[str]) -> None:
        for run_id in run_ids:
            self._console.print(f"\n{title}:")
            self._console.print(history_tree(get_run(run_id)))

    def _say(self, text: str, style: str = "") -> None:
        self._display.say(text, style)


def _serve(console: Console, server: ThreadedWSGIServer, order: str) -> None:
    """Until interrupted, which is the ordinary end."""
    with suppress(KeyboardInterrupt):
        user, password = demo_login()
        unpaid, returned = _leave_questions(order)
        base = f"http://127.0.0.1:{server.server_port}"
        console.print(f"\nThe shop:  {base}/")
        console.print(f"The admin: {base}/admin/  user [bold]{user}[/], password [bold]{password}[/]")
        console.print(f"The runs:  {base}/admin/durable/")
        child = reverse("admin:durable_run_change", args=[quote(order)])
        schedule = reverse("admin:durable_run_schedule", args=[quote(SCHEDULE)])
        console.print(f"Children:  {base}{child} (an order; its shipment is a child)", soft_wrap=True)
        console.print(f"Schedules: {base}{schedule} (a report each night)", soft_wrap=True)
        limits = reverse("admin:durable_run_limits")
        console.print(f"Limits:    {base}{limits} (five labels a second; one sync of a customer)", soft_wrap=True)
        console.print(f"Keys:      {base}{reverse('shop:cart')} (a cart; all clicks go to one run)", soft_wrap=True)
        console.print(f"Transfer:  {base}{unpaid} (an order that waits for the bank's signed word)", soft_wrap=True)
        if returned:
            inbox, post = reverse("admin:durable_run_inbox"), reverse("shop:post")
            console.print(f"Refund:    {base}{returned} (two colleagues have to agree)", soft_wrap=True)
            console.print(f"The inbox: {base}{inbox} (you agree here, and mia by her mail's link)", soft_wrap=True)
            console.print(f"The post:  {base}{post} (all mails)", soft_wrap=True)
        console.print(f"Branches:  {base}/?branch=hill (an order's mails are signed there)", soft_wrap=True)
        console.print(f"The REST interface: curl -u {user}:{password} {base}/api/runs?limit=3", soft_wrap=True)
        console.print("The workers go on. Ctrl-C ends it all.")
        serve(server)


def _leave_questions(run_id: str) -> tuple[str, str]:
    """An order that waits for a transfer, and one whose customer wants the money back: the addresses of both."""
    make_colleague()
    unpaid = checkout.place_order("Mona", "mona@example.org", {Product.objects.all()[0]: 2}, by_transfer=True)
    order = Order.of_run(run_id).first()
    is_asked = order is not None and checkout.ask_for_refund(order)
    return unpaid.get_absolute_url(), order.get_absolute_url() if order is not None and is_asked else ""


def _redis_is_empty() -> bool:
    """Whether there is nothing in it, so nothing of anybody else's that a flush would lose."""
    with redis.Redis.from_url(settings.REDIS_URL) as client:
        return bool(client.dbsize() == 0)


@contextmanager
def _first_attempts_fail() -> Iterator[None]:
    """A carrier that fails the first attempt of each step, and a bank that does not answer it, until the block ends."""
    Fault.switch(Fault.Service.CARRIER, on=True, first_attempts=1)
    Fault.switch(Fault.Service.BANK, on=True, first_attempts=1, late=True)
    try:
        yield
    finally:
        Fault.switch(Fault.Service.CARRIER, on=False)
        Fault.switch(Fault.Service.BANK, on=False)


@contextmanager
def _signals_interrupt() -> Iterator[Event]:
    """Any signal that asks to end interrupts as Ctrl-C does: once, so that the way out is not interrupted too.

    The event is set as well: an interruption that falls into a destructor is swallowed by Python.
    """
    interrupted = Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        interrupted.set()
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield interrupted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
