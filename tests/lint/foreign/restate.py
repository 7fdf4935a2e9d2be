"""Four workflows after ideas of Restate's examples."""

import random
import uuid
from datetime import datetime

import httpx

from durable import AsyncContext, Context, StepExhaustedError, current_step, workflow


def pay(token, amount):
    return httpx.post("https://bank.example.org/charges", json={"token": token, "amount": amount}).is_success


def book(what, customer):
    key = current_step().idempotency_key
    return httpx.post(f"https://{what}.example.org/bookings", json={"id": customer}, headers={"Key": key}).json()


def cancel(rollback, booking):
    httpx.delete(f"https://cancel.example.org/{booking['id']}")


def split(task):
    return {"parts": task.split()}


def execute(part):
    return part.upper()


def quote(trip):
    return httpx.get("https://flights.example.org/quotes", params=trip).json()


# An order through payment, kitchen and delivery (food-ordering).
@workflow(name="restate.order")
def order(ctx: Context, meal: dict):
    token = str(uuid.uuid4())  # expect: W103
    if not ctx.step("payment", pay, token, meal["total"]):  # expect: W153
        meal["status"] = "rejected"  # expect: W123
        return meal
    ctx.sleep("delivery delay", meal["delay"])
    ctx.step("prepare", book, "kitchen", meal["id"])
    ctx.queue.next("preparation finished")
    ctx.queue.next("driver selected")
    ctx.queue.next("delivery finished")
    return "delivered"


# A saga with a list of what is to be undone (sagas).
@workflow(name="restate.trip_by_hand")
def trip_by_hand(ctx: Context, customer: str):
    undo = []
    try:
        for what in ("flight", "car", "hotel"):
            undo.append(lambda: ctx.step(f"cancel {what}", cancel, None, customer))  # expect: W135
            ctx.step(f"book {what}", book, what, customer)
    except StepExhaustedError:
        for each in reversed(undo):
            each()
        raise


@workflow(name="restate.trip")
def trip(ctx: Context, customer: str):
    ctx.rollback_checkpoint("from here")
    for what in ("flight", "car", "hotel"):
        ctx.step(f"book {what}", book, what, customer, rollback=cancel)
    ctx.step("insure", book, "insurance", customer, rollback=lambda r, booking: cancel(r, booking))  # expect: W147


# Split, work in parallel, put together (parallelizework).
@workflow(name="restate.fan_out")
async def fan_out(ctx: AsyncContext, task: str):
    parts = await ctx.step("split", split, task)
    results = await ctx.join("parts", {part: lambda c, part=part: c.step("work", execute, part) for part in parts["parts"]})
    ctx.step("note", print, len(results))  # expect: W142
    return " ".join(results.values())


# Watch a price (flight_price_watcher).
@workflow(name="restate.watch")
def watch(ctx: Context, flight: dict, deadline: datetime):
    attempt = 0
    while True:  # expect: W134
        attempt += 1
        offer = ctx.step(f"probe {attempt}", quote, flight)
        if offer["price"] <= flight["limit"]:
            return offer
        if datetime.now() > deadline:  # expect: W101
            return None
        ctx.sleep(f"pause {attempt}", 10 + random.random())  # expect: W102
