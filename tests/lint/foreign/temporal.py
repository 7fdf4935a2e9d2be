"""Five workflows after ideas of Temporal's Python samples, as somebody writes them who comes from there."""

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import timedelta

import httpx

from durable import AsyncContext, ChildFailedError, Context, workflow


@dataclass
class Window:
    offset: int
    maximum: int
    size: int


def greet(name):
    return f"Hello, {name}!"


def get_records(offset, size):
    return httpx.get("https://records.example.org/", params={"offset": offset, "size": size}).json()


def process(record):
    return record


def ask_model(prompt):
    return httpx.post("https://model.example.org/answers", json={"prompt": prompt}).text


def send_email(text):
    httpx.post("https://mail.example.org/mails", json={"text": text})


# Activities in parallel (hello_parallel_activity): gather, as there.
@workflow(name="temporal.parallel")
async def parallel(ctx: AsyncContext, names: list):
    results = await asyncio.gather(*[ctx.step(f"greet {name}", greet, name) for name in names])  # expect: W107
    return sorted(results)


# A chat that keeps its history in an object and begins anew after some turns (bedrock/entity).
class Chat:
    def __init__(self):
        self.history = []
        self.prompts = deque()

    def prompt(self, text):
        return " ".join(part for _, part in self.history) + text


@workflow(name="temporal.chat")
def chat(ctx: Context, summary: str):
    conversation = Chat()
    conversation.history.append(("summary", summary))
    while True:  # expect: W134
        message = ctx.queue.next("prompt", names=["prompt", "end"])  # expect: W133
        if message.name == "end":
            return ctx.step("summarize", ask_model, conversation.prompt("Summarize."))  # expect: W153
        conversation.history.append(("user", message.body))
        answer = ctx.step(f"answer {len(conversation.history)}", ask_model, conversation.prompt(message.body))  # expect: W153
        conversation.history.append(("answer", answer))


# A window over many records, each a child that goes on alone (batch_sliding_window).
@workflow(name="temporal.record")
def record(ctx: Context, number: int):
    return ctx.step("process", process, number)


@workflow(name="temporal.sliding_window")
def sliding_window(ctx: Context, window: Window):
    open_records = set()
    progress = 0
    for each in ctx.step("get records", get_records, window.offset, window.size):
        while len(open_records) >= window.size:
            done = ctx.queue.next("completed")  # expect: W133
            open_records.discard(done.body)
            progress += 1
        open_records.add(each)
        ctx.start_child(f"record {each}", record.using(when_parent_ends="leave"), each)
    for left in open_records:  # expect: W108
        ctx.queue.next(f"completed {left}")  # expect: W131
    return progress


# A mail every 30 days until told to stop (sleep_for_days).
@workflow(name="temporal.sleep_for_days")
def sleep_for_days(ctx: Context):
    is_complete = False

    def complete(c):
        nonlocal is_complete
        c.queue.next("complete")
        is_complete = True

    while not is_complete:
        ctx.step("mail", send_email, "30 days until the next mail")  # expect: W133, W153
        ctx.race("month", {"sleep": lambda c: c.sleep("a month", timedelta(days=30)), "complete": complete})  # expect: W133
    return "done"


# A child workflow whose failure is caught (hello_child_workflow, hello_exception).
@workflow(name="temporal.parent")
async def parent(ctx: AsyncContext, name: str):
    try:
        return await ctx.child("compose", record, name)
    except ChildFailedError as error:
        ctx.logger.warning("failed: %s", error)
        await ctx.step("mail", send_email, "failed")  # expect: W153
        raise
