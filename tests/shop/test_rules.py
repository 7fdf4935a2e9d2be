"""The workflows that keep one rule each, and what the rule is good for: each is disturbed where a careless one breaks."""

from decimal import Decimal

import pytest

from durable import get_run
from durable.testing import Harness
from project.shop import workflows
from project.shop.examples import EXAMPLES
from project.shop.models import Charge, Customer, Fault, Mail, Subscription
from project.shop.services import bank, pictures

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


def test_the_gallery_fetches_what_is_missing_and_no_more(harness: Harness) -> None:
    Fault.switch(Fault.Service.PICTURES, on=True, first_attempts=1)
    run = workflows.gallery.using(id="gallery").start()
    harness.finish("gallery")
    assert run.output == {name: pictures.fetch(name, attempt=2) for name in pictures.names(attempt=2)}
    assert {entry.attempts for entry in run.history() if entry.kind == "step"} == {2}


def test_thanks_leave_the_input_as_it_was(harness: Harness, customer: Customer) -> None:
    event = {"email": customer.email, "stars": "5"}
    run = workflows.thank.using(id="thank").start(event)
    harness.finish("thank")
    assert run.output == "Thank you, Ada"
    assert event == {"email": customer.email, "stars": "5"}
