"""What one step does."""

import requests
import stripe
from django.core.mail import send_mail
from django.db import models

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
