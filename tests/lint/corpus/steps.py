"""What one step does."""

import requests
import stripe
from django.core.mail import send_mail
from django.db import models

from bank_of_others import bank
from durable import Context, current_step, step, workflow


class Order(models.Model):
    class Meta:
        app_label = "corpus"


def work(*args):
    return args


def pay_and_tell(order_id):
    stripe.Charge.create(amount=1, idempotency_key=f"order-{order_id}")
    requests.post("https://hooks.example.org/paid", json={"id": order_id})


@workflow(name="steps.pay_and_tell")
def pays_and_tells(ctx: Context, order_id: int):
    ctx.step("pay and tell", pay_and_tell, order_id)  # expect: W151
    ctx.step("done", work)


@workflow(name="steps.mails")
def mails(ctx: Context, address: str):
    ctx.step("mail", send, address)  # expect: W153
    ctx.step("mail at once", send_mail, "a", "b", "c", [address])
    ctx.step("mail in a lambda", lambda: send_mail("a", "b", "c", [address]))  # expect: W153


def send(address):
    send_mail("subject", "text", "shop@example.org", [address])


@step(atomic=True)
def mark_and_send(order_id):
    Order.objects.filter(pk=order_id).update(state="sent")
    send_mail("subject", "text", "shop@example.org", ["a"])


def charge(order_id):
    stripe.Charge.create(amount=1, idempotency_key=current_step().idempotency_key)


@workflow(name="steps.safe")
def safe(ctx: Context, order_id: int):
    ctx.step(mark_and_send, order_id)
    ctx.step("charge", charge, order_id)
    ctx.step("mark", lambda: Order.objects.filter(pk=order_id).update(state="sent"), atomic=True)
    ctx.step("read", lambda: requests.get("https://example.org/a").json())


def one_service_twice(order_id):
    quote = requests.get(f"https://carrier.example.org/quotes/{order_id}").json()
    return requests.post("https://carrier.example.org/labels", json=quote).json()


@workflow(name="steps.one_service_twice")
def calls_one_service_twice(ctx: Context, order_id: int):
    ctx.step("label", one_service_twice, order_id)


BANK = "https://bank.example.org/charges"
CHAT = "https://chat.example.org/messages"


def to_two_constants(order_id):
    requests.get(BANK)
    requests.get(f"{CHAT}/{order_id}")


def many_calls(order_id):
    requests.get("https://example.org/a")
    requests.get("https://example.org/b")
    requests.get("https://example.org/c")


def everything(order_id):
    order = Order.objects.get(pk=order_id)
    requests.get(f"https://example.org/{order_id}")
    order.save()


def load_and_ask(order_id):
    order = Order.objects.get(pk=order_id)
    return requests.get(f"https://example.org/{order.number}").json()


@workflow(name="steps.many")
def many(ctx: Context, order_id: int):
    ctx.step("two constants", to_two_constants, order_id)  # expect: W151
    ctx.step("many calls", many_calls, order_id)  # expect: W151
    ctx.step("load and ask", load_and_ask, order_id)


@workflow(name="steps.everything")
def does_everything(ctx: Context, order_id: int):
    ctx.step("everything", everything, order_id)  # expect: W152


@workflow(name="steps.one")
def one(ctx: Context, order_id: int):
    ctx.step("load and ask", load_and_ask, order_id)


@workflow(name="steps.bank")
def bank_of_others(ctx: Context, order_id: int):
    ctx.step("charge", lambda: bank.charge(order_id))  # expect: W153
    ctx.step("with a key", lambda: bank.charge(order_id, key=current_step().idempotency_key))
    ctx.step("refund", lambda: bank.refund(order_id), atomic=True)
    ctx.step("balance", lambda: bank.balance(order_id))


def put(order):
    requests.put(f"https://orders.example.org/{order}", json={"paid": True})


@workflow(name="steps.puts")
def puts(ctx: Context, order: int):
    ctx.step("put", put, order)  # HTTP: a second PUT of the same has no other effect
