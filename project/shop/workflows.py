"""The shop's workflows: an order's, and one for each rule of writing workflows, which its docstring names.

The code here is replayed from its record again and again. It only decides what comes next; all that reads or changes
the world is in `steps`.
"""

from collections import Counter
from typing import Any

from django.conf import settings

from durable import AsyncContext, Break, Context, Continue, CriticalError, Limit, cron, event, workflow
from durable.errors import EventTimeoutError, PersonTimeoutError
from project.shop import steps
from project.shop.forms import RefundForm
from project.shop.models import Order
from project.shop.services.line import ServiceDownError

__all__ = [
    "cart",
    "describe",
    "fulfil",
    "gallery",
    "inspect",
    "nightly",
    "postcard",
    "refund",
    "ship",
    "subscription",
    "surprise",
    "sync",
    "thank",
    "transfer",
    "welcome",
]


@workflow(name="shop.ship")
def ship(ctx: Context, order_id: int) -> str:
    """Buy the label of a parcel and tell the customer, side by side, and return the tracking number.

    The rule: a run of its own for what has a life of its own. A shipment is a child of its order's run, which waits for
    it. It has its own history, its own retries, and its own way to be undone, which a rollback of the order asks for.
    """
    ctx.rollback_checkpoint("from here on")
    packed = ctx.join(
        "pack",
        {
            "label": lambda c: c.step(
                "buy", steps.buy_label, order_id, rate="carrier", max_retries=8, rollback=steps.void_label
            ),
            "mail": lambda c: c.step("send", steps.send_order_mail, order_id, max_retries=8),
        },
    )
    tracking: str = packed["label"]
    return tracking


@workflow(name="shop.transfer")
def transfer(ctx: Context, order_id: int) -> int:
    """Ask the bank for a transfer, and return the number of the charge when the bank says that the money is there.

    The rule: what comes from outside is signed. The bank gets an address that is this run's alone. Its word counts
    once, and only with its signature: who has nothing but the address is refused.
    """
    ctx.rollback_checkpoint("from here on")
    paid = ctx.link("paid", timeout=settings.SHOP["TRANSFER_DEADLINE"], verify="project.shop.steps.signed_by_bank")
    ctx.step("ask", steps.ask_for_transfer, order_id, paid.url, max_retries=8)
    told: dict[str, Any] = paid.wait("the bank's word")
    charge_id: int = ctx.step("book", steps.book_transfer, order_id, told, rollback=steps.refund_card)
    return charge_id


@workflow(name="shop.fulfil", on_end=steps.end_order)
def fulfil(ctx: Context, order_id: int, by_transfer: bool = False) -> dict[str, str]:
    """Charge, ask the shopkeeper, ship. Whatever goes wrong after the charge gives the money back.

    The rule: what costs money is done once, and says how it is undone. Where nobody knows whether the card was charged,
    the bank is asked; while it is away, the order waits, and can be cancelled. What belongs together is one commit, as
    the end of the run and the order's status are.
    """
    ctx.rollback_checkpoint("from here on")
    if by_transfer:
        ctx.status("waiting for your transfer", done=0, of=4)
        charge_id = ctx.child("transfer", transfer.using(rollback=True), order_id)
    else:
        charge_id = ctx.step(
            "charge",
            steps.charge_card,
            order_id,
            once=True,
            verify=steps.find_order_charge,
            not_done=(ServiceDownError,),
            when_exhausted="hold",
            max_retries=5,
            timeout=10,
            rollback=steps.refund_card,
        )
    ctx.step("mark paid", steps.mark_paid, order_id, charge_id, atomic=True)
    ctx.status("paid, the shopkeeper looks at it", done=1, of=4)
    approval = ctx.queue.next("approval", names=["approved", "rejected"], timeout=settings.SHOP["APPROVAL_DEADLINE"])
    if approval.name == "rejected":
        raise CriticalError("rejected by the shopkeeper")
    ctx.status("your parcel is packed", done=2, of=4)
    label = ctx.child("ship", ship.using(rollback=True), order_id)
    ctx.status("waiting for the courier", done=3, of=4)
    ctx.sleep("cool off", settings.SHOP["COOL_OFF"])
    ctx.step("hand over", steps.hand_over, order_id, atomic=True)
    ctx.status("handed to the courier", done=4, of=4)
    return {"label": label}


@workflow(name="shop.refund")
def refund(ctx: Context, order_id: int) -> str:
    """Give the money of an order back, when two colleagues agree and the parcel is back.

    The rule: who decides is checked when they decide. Two different people who may refund have to agree, in their inbox
    or by the link of their mail; one who refuses is enough. The parcel may be back before they have agreed.
    """
    ctx.status("two colleagues look at it", done=0, of=3)
    try:
        verdict = ctx.ask_person(
            "give the money back",
            RefundForm,
            permission="shop.add_refund",
            about=f"shop.order:{order_id}",
            text=f"The customer of order {order_id} wants to send it back.",
            approvals=2,
            mail=True,
            remind="2 days",
            timeout=settings.SHOP["REFUND_DEADLINE"],
        )
        words = "\n".join(each.data["words"] for each in verdict.answers if each.data["words"])
        if not verdict.approved:
            return _keep_money(ctx, order_id, words)
        ctx.status("agreed; please send the parcel back", done=1, of=3)
        ctx.event("parcel is back", "parcel.back", key=str(order_id), within="1 day", timeout="30 days")
    except PersonTimeoutError:
        return _keep_money(ctx, order_id, "Nobody has decided in time.")
    except EventTimeoutError:
        return _keep_money(ctx, order_id, "The parcel did not come back.")
    ctx.status("the parcel is back", done=2, of=3)
    ctx.step("give back", steps.give_money_back, order_id, max_retries=10)
    ctx.step("tell", steps.tell_customer, order_id, "Your money is on its way", words, max_retries=8)
    ctx.status("your money is on its way", done=3, of=3)
    return "given back"


def _keep_money(ctx: Context, order_id: int, why: str) -> str:
    ctx.status("your money is not given back")
    ctx.step("tell", steps.tell_customer, order_id, "Your money is not given back", why, max_retries=8)
    return "kept"


@workflow(name="shop.inspect", on=event("parcel.back"))
def inspect(ctx: Context, parcel: dict[str, int]) -> None:
    """Ask the shopkeeper to look at a parcel that has come back. Started by an event.

    The rule: who tells does not know who listens. The carrier says once that a parcel is back. The refund that waits
    for it goes on, and this run begins; neither is named where the event is published.
    """
    ctx.step("send", steps.send_mail, steps.KEEPER, f"Order {parcel['order']} is back", "Scratched?", max_retries=8)


@workflow(name="shop.cart")
def cart(ctx: Context) -> int | None:
    """Keep what a visitor chooses until it is ordered; return the order's number, or None for a cart that was left.

    The rule: one open run for each key. Each click sends to the visitor's open cart, or starts one and sends to that.
    However fast the clicks come, there is one cart, and it has them all in their order.
    """

    def one_click(c: Context, kept: dict[str, int]) -> Break | Continue:
        patience = settings.SHOP["CART_PATIENCE"]
        clicks = c.queue.next_batch("click", names=["add", "order", "empty"], count=1, timeout=patience)
        if clicks and clicks[0].name == "add":
            return Continue(dict(Counter(kept) + Counter(clicks[0].body)))
        if not clicks or clicks[0].name == "empty" or not kept:
            return Break(None)
        order_id: int = c.step("write the order", steps.write_order, kept, clicks[0].body, atomic=True)
        fulfilled = fulfil.using(id=Order.run_id_of(order_id), about=f"shop.order:{order_id}", when_parent_ends="leave")
        c.start_child("fulfil", fulfilled, order_id)
        return Break(order_id)

    order_id: int | None = ctx.loop("clicks", one_click, state={})
    return order_id


@workflow(
    name="shop.nightly",
    schedule=cron("30 2 * * *", zone="Europe/Berlin", overlap="skip", catch_up="last", window="12 hours"),
)
def nightly(ctx: Context) -> dict[str, str]:
    """Add up the day's orders each night at half past two, and mail the sums to the shopkeeper.

    The rule: a scheduled run is about its moment, never about now. One that starts late, is recovered or is backfilled
    reports the day that it was meant for.
    """
    until = ctx.scheduled_for or ctx.now()
    sums: dict[str, str] = ctx.step("add up", steps.add_up_day, until.isoformat(), max_retries=8)
    ctx.step("send", steps.send_report, until.date().isoformat(), sums, max_retries=8)
    return sums


@workflow(name="shop.sync", limit=Limit("crm", at_once=1, key=lambda email: email, hold="open"))
def sync(ctx: Context, email: str) -> str:
    """Tell the newsletter's address book what is known of a customer.

    The rule: one at a time is a limit, not luck. Of two runs that read and then write the same address, the one that
    read first may write last. So each holds the slot of its customer to its end, and the next one waits in line.
    """
    customer: dict[str, str] = ctx.step("look up customer", steps.look_up_customer, email)
    ctx.sleep("collect changes", settings.SHOP["COOL_OFF"])
    ctx.step("send", steps.send_mail, steps.KEEPER, f"Address of {email}", customer["name"], max_retries=8)
    return customer["name"]


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


@workflow(name="shop.describe")
def describe(ctx: Context, slug: str) -> str:
    """Have a product described, word by word, and keep the text on the shelf.

    The rule: what a step returns is the truth. The page shows each word as it comes, and begins anew when another
    attempt does. What is kept is the text that was returned.
    """
    text: str = ctx.step("write", steps.write_description, slug, max_retries=8)
    ctx.step("keep", steps.keep_description, slug, text, atomic=True)
    return text


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
