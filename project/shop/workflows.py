"""The shop's workflows: an order's, and one for each rule of writing workflows, which its docstring names.

The code here is replayed from its record again and again. It only decides what comes next; all that reads or changes
the world is in `steps`.
"""

from django.conf import settings

from durable import AsyncContext, Break, Context, Continue, CriticalError, workflow
from project.shop import steps

__all__ = ["fulfil", "gallery", "postcard", "subscription", "surprise", "thank", "welcome"]


@workflow(name="shop.fulfil")
def fulfil(ctx: Context, order_id: int) -> dict[str, str]:
    """Charge, ask the shopkeeper, ship. Whatever goes wrong after the charge gives the money back.

    The rule: what belongs together is one commit, as the charge and its record are. And each step that costs money says
    how it is undone.
    """
    ctx.rollback_checkpoint("from here on")
    charge_id = ctx.step(
        "charge", steps.charge_card, order_id, atomic=True, max_retries=5, timeout=10, rollback=steps.refund_card
    )
    ctx.step("mark paid", steps.mark_paid, order_id, charge_id, atomic=True)
    approval = ctx.queue.next("approval", names=["approved", "rejected"], timeout=settings.SHOP["APPROVAL_DEADLINE"])
    if approval.name == "rejected":
        raise CriticalError("rejected by the shopkeeper")
    shipped = ctx.join(
        "ship",
        {
            "label": lambda c: c.step("buy", steps.buy_label, order_id, max_retries=8, rollback=steps.void_label),
            "mail": lambda c: c.step("send", steps.send_order_mail, order_id, max_retries=8),
        },
    )
    ctx.sleep("cool off", settings.SHOP["COOL_OFF"])
    ctx.step("hand over", steps.hand_over, order_id, atomic=True)
    return {"label": shipped["label"]}


WELCOME_MAILS = [
    ("Welcome to Nine Lives", "Your cat has approved of us."),
    ("How to choose a box", "Slightly too small is right."),
    ("A word from the cat", "It is time to order again."),
]


@workflow(name="shop.welcome")
def welcome(ctx: Context, name: str, email: str) -> int:
    """Send a new customer a few mails, some days apart. Started by a model signal.

    The rule: names are deterministic. Each iteration of a loop is a scope of its own, so "send" is a good name.
    """

    def send_one(c: Context, number: int) -> Break | Continue:
        subject, body = WELCOME_MAILS[number]
        c.step("send", steps.send_mail, email, subject, f"Dear {name},\n{body}", max_retries=8)
        if number + 1 == len(WELCOME_MAILS):
            return Break(number + 1)
        c.sleep("pause", settings.SHOP["MAIL_PAUSE"])
        return Continue(number + 1)

    sent: int = ctx.loop("mails", send_one, state=0)
    return sent


@workflow(name="shop.subscription")
def subscription(ctx: Context, subscription_id: int) -> int:
    """Charge a subscription each month until the customer says stop, and return how many months that was.

    The rule: steps are idempotent. The step that charges asks whether the month was charged before it charges.
    """

    def one_month(c: Context, month: int) -> Break | Continue:
        c.step(f"charge month {month}", steps.charge_month, subscription_id, month, max_retries=10)
        if c.queue.next_batch("a month", names=["stop"], timeout=settings.SHOP["MONTH"]):
            return Break(month)
        return Continue(month + 1)

    months: int = ctx.loop("months", one_month, state=1)
    return months


@workflow(name="shop.postcard")
async def postcard(ctx: AsyncContext, email: str) -> str:
    """Send someone the cutest cat, and return its name.

    The rule: steps are granular. The catalogue and the picture store are two services: each has a step, with retries of
    its own, and when one is down the other is not asked again.
    """
    cat: str = await ctx.step("get cutest cat", steps.cutest_cat)
    picture: str = await ctx.step("fetch cat image", steps.fetch_picture, cat, max_retries=8, timeout=5)
    await ctx.step("send", steps.send_mail, email, f"This is {cat}", picture)
    return cat


@workflow(name="shop.surprise")
def surprise(ctx: Context) -> str:
    """Choose one of the two cutest cats, after a long sleep, and return its picture.

    The rule: state is made of what steps return, and of nothing else. The run sleeps in one process and wakes in
    another, and the list is still there. The dice are the context's, so they fall the same way on each replay.
    """
    cats = ctx.join(
        "cutest cats",
        {
            "first": lambda c: c.step("get", steps.cutest_cat, 1),
            "second": lambda c: c.step("get", steps.cutest_cat, 2),
        },
    )
    ctx.sleep("💤💤💤💤", settings.SHOP["NAP"])
    chosen = ctx.random.choice([cats["first"], cats["second"]])
    picture: str = ctx.step("fetch the chosen cat", steps.fetch_picture, chosen)
    return picture


@workflow(name="shop.gallery")
def gallery(ctx: Context) -> dict[str, str]:
    """Fetch the pictures of all cats.

    The rule: names are deterministic. These hold a value, and it comes from a step: never from a clock or from dice.
    """
    cats: list[str] = ctx.step("list cats", steps.list_cats)
    return {cat: ctx.step(f"fetch {cat}", steps.fetch_picture, cat) for cat in cats}


@workflow(name="shop.thank")
def thank(ctx: Context, event: dict[str, str]) -> str:
    """Thank a customer for a review. Started by a model signal.

    The rule: the input is not changed. What is learned on the way is returned by a step and kept in a variable of its
    own: a key added to the event would be gone on the next replay.
    """
    customer: dict[str, str] = ctx.step("look up customer", steps.look_up_customer, event["email"])
    subject = f"Thank you, {customer['name']}"
    body = f"A customer since {customer['since']}, and now {event['stars']} stars. Purr."
    ctx.step("send", steps.send_mail, event["email"], subject, body)
    return subject
