"""Nine workflows after ideas of Restate's examples."""

import random
import time
import uuid
from datetime import datetime

import httpx

from durable import AsyncContext, Break, Context, Continue, current_step, workflow
from durable.errors import StepExhaustedError


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


# A document into a store of vectors (rag-ingestion).
def download(bucket, name):
    return httpx.get(f"https://{bucket}.example.org/{name}").text


def snippets_of(text):
    return [text[start : start + 1000] for start in range(0, len(text), 800)]


def embed(text):
    return httpx.post("https://model.example.org/embeddings", json={"text": text}).json()


def add_documents(snippets, vectors):
    httpx.put("https://vectors.example.org/", json={"texts": snippets, "vectors": vectors})


@workflow(name="restate.document")
async def document(ctx: AsyncContext, request: dict):
    text = await ctx.step("download", download, request["bucket"], request["name"])
    snippets = snippets_of(text)
    vectors = [ctx.step(f"embed {number}", embed, each) for number, each in enumerate(snippets)]  # expect: W153
    vectors = [await each for each in vectors]
    await ctx.step("add", add_documents, snippets, vectors)
    return "ok"


# A cart whose tickets are a set, and a checkout with an id of its own (ticket-reservation).
@workflow(name="restate.cart")
def ticket_cart(ctx: Context, user: str):
    tickets = set()
    while len(tickets) < 3:
        message = ctx.queue.next(f"request {len(tickets)}", names=["add", "checkout"], timeout="15 minutes")
        if message.name == "checkout":
            break
        tickets.add(message.body)
    payment = str(ctx.uuid4())
    if not ctx.step("pay", pay, payment, 40 * len(tickets)):  # expect: W153
        for ticket in tickets:  # expect: W108
            ctx.step(f"release {ticket}", execute, ticket)  # expect: W131
        return False
    for ticket in sorted(tickets):
        ctx.step(f"mark {ticket}", execute, ticket)
    return True


# A reminder after a while (reminder_service), and a driver who moves until the delivery is there (driver_digital_twin).
@workflow(name="restate.reminder")
def reminder(ctx: Context, text: str, at: float):
    delay = at - time.time()  # expect: W101
    ctx.sleep("delay", delay)
    ctx.queue.send("reminders", text, to="chat")


@workflow(name="restate.driver")
def driver(ctx: Context, route: list):
    def move(c, position):  # expect: W149
        step = c.random.choice([1, 2, 3])
        position = min(position + step, len(route))
        c.sleep("drive", 1 + c.random.random())
        if position == len(route):
            return Break(position)
        Continue(position)

    return ctx.loop("moves", move, 0)
