"""The workflows that keep one rule each, and what the rule is good for.

Each is disturbed where a careless workflow breaks.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from durable import Context, Handle, get_run
from durable.operations.schedules import verbs
from durable.operations.schedules.sync import synchronise
from durable.testing import Harness
from project.shop import checkout, steps, workflows
from project.shop.examples import EXAMPLES
from project.shop.models import Charge, Customer, Fault, Label, Mail, Order, Product, Subscription
from project.shop.services import bank, pictures, writer

pytestmark = pytest.mark.django_db


@pytest.fixture
def customer(harness: Harness) -> Customer:
    return Customer.objects.create(name="Ada", email="ada@example.org")


@pytest.fixture
def subscription(customer: Customer) -> Subscription:
    return Subscription.objects.create(customer=customer)


def test_every_workflow_names_its_rule() -> None:
    assert {example.workflow.name for example in EXAMPLES.values()} == {
        getattr(workflows, name).name for name in workflows.__all__
    }
    for example in EXAMPLES.values():
        assert example.summary
        assert example.rule.startswith("The rule: ")


def test_a_new_customer_gets_three_mails_days_apart(harness: Harness, customer: Customer) -> None:
    harness.settle()
    assert Mail.objects.count() == 1
    harness.advance("3 days")
    harness.settle()
    assert Mail.objects.count() == 2
    harness.finish(f"welcome-{customer.pk}")
    assert get_run(f"welcome-{customer.pk}").output == 3
    assert [mail.subject for mail in Mail.objects.order_by("pk")] == [subject for subject, _ in workflows.WELCOME_MAILS]


def test_a_customer_is_welcomed_once(harness: Harness, customer: Customer) -> None:
    customer.name = "Ada L."
    customer.save()
    harness.finish(f"welcome-{customer.pk}")
    assert Mail.objects.count() == 3


def test_a_month_that_was_charged_is_not_charged_again(
    harness: Harness, subscription: Subscription, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bank takes the money, and its answer is lost."""
    charge = bank.charge

    def charge_and_hang_up(*args: object, **options: object) -> Charge:
        charge(*args, **options)  # type: ignore[arg-type]  # passed through
        monkeypatch.setattr(bank, "charge", charge)
        raise ConnectionError("the line went dead")

    monkeypatch.setattr(bank, "charge", charge_and_hang_up)
    run = workflows.subscription.using(id="subscription").start(subscription.pk)
    run.send("stop")
    harness.finish("subscription")
    assert run.output == 1
    assert Charge.objects.filter(reference=subscription.payment_reference(1)).count() == 1


def test_a_subscription_goes_on_until_it_is_stopped(harness: Harness, subscription: Subscription) -> None:
    run = workflows.subscription.start(subscription.pk)
    for _ in range(3):
        harness.settle()
        harness.advance("30 days")
    harness.settle()
    run.send("stop")
    harness.settle()
    assert run.output == 4
    assert [charge.amount for charge in Charge.objects.all()] == [Decimal("10.00")] * 4


def test_when_the_pictures_are_away_the_catalogue_is_not_asked_again(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    cutest, fetch = pictures.cutest, pictures.fetch

    def count(rank: int = 1, *, attempt: int = 1) -> str:
        asked.append(rank)
        return cutest(rank, attempt=attempt)

    def away_at_first(name: str, *, attempt: int = 1) -> str:
        if attempt <= 2:
            raise ConnectionError("no pictures today")
        return fetch(name, attempt=attempt)

    monkeypatch.setattr(pictures, "cutest", count)
    monkeypatch.setattr(pictures, "fetch", away_at_first)
    run = workflows.postcard.using(id="postcard").start("ada@example.org")
    harness.finish("postcard")
    assert run.output == "Mochi"
    assert asked == [1]
    assert Mail.objects.get().body == fetch("Mochi")


def test_the_cats_of_before_the_nap_are_there_after_it(harness: Harness) -> None:
    run = workflows.surprise.using(id="surprise").start()
    harness.settle()
    assert run.state == "sleeping"
    harness.finish("surprise")
    assert run.output in {pictures.fetch(name) for name in ("Mochi", "Biscuit")}


def test_the_text_that_is_kept_is_the_one_that_was_returned(
    harness: Harness, product: Product, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer breaks off in the midst of the first attempt."""
    words_about = writer.words_about

    def broken_off(name: str) -> Iterator[str]:
        monkeypatch.setattr(writer, "words_about", words_about)
        yield from ["Half", "a"]
        raise ConnectionError("the line went dead")

    monkeypatch.setattr(writer, "words_about", broken_off)
    run = workflows.describe.using(id="text").start(product.slug)
    harness.finish("text")
    events = [chunk.event for chunk in run.stream("write")]
    assert events[:4] == ["chunk", "chunk", "restart", "chunk"]
    product.refresh_from_db()
    assert product.description == run.output == " ".join(harness.emitted("text", "write"))
    assert product.description.startswith(product.name)


def test_the_gallery_fetches_what_is_missing_and_no_more(harness: Harness) -> None:
    Fault.switch(Fault.Service.PICTURES, on=True, first_attempts=1)
    run = workflows.gallery.using(id="gallery").start()
    harness.finish("gallery")
    assert run.output == {name: pictures.fetch(name, attempt=2) for name in pictures.names(attempt=2)}
    assert {entry.attempts for entry in run.history() if entry.kind == "step"} == {2}


def test_syncs_of_one_customer_go_one_after_the_other(harness: Harness, customer: Customer) -> None:
    other = Customer.objects.create(name="Bela", email="bela@example.org")
    for run_id, email in (("first", customer.email), ("second", customer.email), ("other", other.email)):
        workflows.sync.using(id=run_id).start(email)
    harness.settle()
    assert "in line for crm/ada@example.org" in str(get_run("second").info().summary)
    assert get_run("second").history() == []
    assert len(get_run("other").history()) > 0
    harness.finish("first")
    harness.finish("second")
    assert Mail.objects.filter(subject=f"Address of {customer.email}").count() == 2


def test_the_carrier_sells_five_labels_a_second(harness: Harness) -> None:
    product = Product.objects.create(slug="ball", name="Ball", description="Red.", price=Decimal("3.00"))
    start = harness.now
    orders = [checkout.place_order("Ada", f"ada-{number}@example.org", {product: 1}) for number in range(6)]
    runs = [workflows.ship.using(id=f"ship-{order.pk}").start(order.pk) for order in orders]
    for run in runs:
        harness.finish(run)
    assert Label.objects.count() == 6
    assert (harness.now - start).total_seconds() >= 1


def test_thanks_leave_the_input_as_it_was(harness: Harness, customer: Customer) -> None:
    event = {"email": customer.email, "stars": "5"}
    run = workflows.thank.using(id="thank").start(event)
    harness.finish("thank")
    assert run.output == "Thank you, Ada"
    assert event == {"email": customer.email, "stars": "5"}


def test_clicks_of_one_visitor_are_one_cart(harness: Harness, product: Product) -> None:
    first = checkout.add_to_cart("ada", {product: 2})
    harness.settle()
    assert checkout.add_to_cart("ada", {product: 1}) == first
    other = checkout.add_to_cart("bob", {product: 1})
    assert other != first
    assert checkout.send_to_cart("ada", "order", {"name": "Ada", "email": "ada@example.org"})
    harness.settle()
    order = Order.objects.get()
    assert first.output == order.pk
    assert [(line.product, line.quantity) for line in order.lines.all()] == [(product, 3)]
    assert get_run(order.run_id).parent == first
    assert get_run(order.run_id).state == "sleeping", "it goes on without the cart"
    assert other.state == "sleeping"
    assert not checkout.send_to_cart("ada", "order", {})
    assert checkout.add_to_cart("ada", {product: 1}) != first


def test_a_cart_that_is_left_or_emptied_is_no_order(harness: Harness, product: Product) -> None:
    left, emptied, empty = (checkout.add_to_cart(each, {product: 1}) for each in ("left", "emptied", "empty"))
    checkout.send_to_cart("emptied", "empty", {})
    harness.finish(emptied.id)
    harness.advance("1 day")
    harness.settle()
    assert (left.output, emptied.output, empty.output) == (None, None, None)
    assert {each.state for each in (left, emptied, empty)} == {"completed"}
    assert not Order.objects.exists()


@pytest.mark.slow
def test_wherever_the_process_dies_a_cart_is_one_order(harness: Harness, product: Product) -> None:
    def drive(world: Harness, run: Handle) -> None:
        for number, (name, body) in enumerate(
            [("add", {product.slug: 1}), ("add", {product.slug: 2}), ("order", {"name": "A", "email": "a@example.org"})]
        ):
            world.send(run, name, body, id=str(number))
            world.settle()

    def check() -> None:
        order = Order.objects.get()
        assert [line.quantity for line in order.lines.all()] == [3]

    def one(ctx: Context) -> bool:  # the numbers of orders differ from trial to trial
        return workflows.cart.function(ctx) is not None

    assert harness.crash_everywhere(one, drive=drive, check=check) >= 6


def test_the_report_is_about_the_moment_of_its_tick(harness: Harness, product: Product) -> None:
    checkout.place_order("Ada", "ada@example.org", {product: 2})
    harness.settle()
    Order.objects.update(placed_at=datetime(2026, 1, 1, 12, tzinfo=UTC), status=Order.Status.SENT)
    synchronise()
    harness.advance("14 hours")
    harness.settle()
    run = get_run("shop.nightly@2026-01-02T01:30:00Z")  # half past two in Berlin
    assert run.output == {"orders": "1", "sent": "1", "refunded": "0", "taken": "14.00"}
    report = Mail.objects.get(to=steps.KEEPER)
    assert report.subject == "Report of 2026-01-02"
    assert "taken: 14.00" in report.body
    harness.advance("1 day")
    harness.settle()
    assert get_run("shop.nightly@2026-01-03T01:30:00Z").output == {
        "orders": "0",
        "sent": "0",
        "refunded": "0",
        "taken": "0.00",
    }


def test_the_report_can_be_asked_for_now(harness: Harness, product: Product) -> None:
    synchronise()
    tick = verbs.run_now("shop.nightly")
    harness.finish(tick.run_id)
    assert get_run(tick.run_id).state == "completed"
    assert Mail.objects.filter(to=steps.KEEPER).count() == 1
