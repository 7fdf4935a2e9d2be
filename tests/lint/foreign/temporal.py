"""Twelve workflows after ideas of Temporal's Python samples, as somebody writes them who comes from there."""

import asyncio
from collections import deque
from dataclasses import dataclass
from datetime import datetime, timedelta

import httpx

from durable import AsyncContext, Break, Context, Continue, workflow
from durable.errors import ChildFailedError, MessageTimeoutError


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


# A day's records, and all days of a month: tasks in a group, as there (batch_daily).
@dataclass
class Day:
    filter: str
    day: str | None = None


def list_records(condition, day):
    return httpx.get("https://records.example.org/", params={"filter": condition, "day": day}).json()


@workflow(name="temporal.day")
async def day(ctx: AsyncContext, given: Day):
    if given.day is None:
        given.day = ctx.scheduled_for.strftime("%Y-%m-%d")  # expect: W123
    records = await ctx.step("list", list_records, given.filter, given.day)
    async with asyncio.TaskGroup() as group:  # expect: W107
        tasks = [group.create_task(ctx.step(f"record {each}", process, each)) for each in records]
    return sum(task.result()["runtime"] for task in tasks)


@workflow(name="temporal.month")
async def month(ctx: AsyncContext, start_day: str, end_day: str, condition: str):
    start = datetime.strptime(start_day, "%Y-%m-%d")
    end = datetime.strptime(end_day, "%Y-%m-%d")
    days = [start + timedelta(days=number) for number in range((end - start).days)]
    runtimes = await ctx.map("days", day, [(Day(condition, each.strftime("%Y-%m-%d")),) for each in days])
    return sum(runtimes)


# Research by a class with methods: a plan, searches beside each other, a report (deep_research).
class Research:
    def __init__(self, ctx: AsyncContext, query: str):
        self.ctx = ctx
        self.query = query
        self.found = []

    async def run(self):
        plan = await self.ctx.step("plan", ask_model, self.query)  # expect: W153
        await self.search(plan.splitlines())
        return self.report(await self.ctx.step("write", ask_model, str(self.found)))  # expect: W153

    async def search(self, queries):
        async def one(c, query):
            try:
                return await c.step("search", list_records, query, None)
            except Exception as error:
                self.ctx.logger.warning("%s: %s", query, error)
                return None

        found = await self.ctx.join("searches", {query: (lambda c, q=query: one(c, q)) for query in queries})
        self.found += [each for each in found.values() if each is not None]

    def report(self, text):
        return f"# {self.query}, {datetime.now():%d.%m.%Y}\n\n{text}"  # expect: W101


@workflow(name="temporal.research")
async def deep_research(ctx: AsyncContext, query: str):
    return await Research(ctx, query).run()


# Poll a service, and begin anew before the history is long (polling/periodic_sequence).
@workflow(name="temporal.polling")
def polling(ctx: Context, url: str, interval: int):
    for attempt in range(10):
        try:
            return ctx.step(f"poll {attempt}", list_records, url, None, max_retries=0)
        except Exception:
            ctx.logger.info("attempt %s failed", attempt)
        ctx.sleep(f"pause {attempt}", interval)
    polling.start(url, interval)  # expect: W146


# Nodes of a cluster are given to jobs by messages, until it is shut down (safe_message_handlers).
@workflow(name="temporal.cluster")
def cluster(ctx: Context, nodes: dict):
    def serve(c, state):
        message = c.queue.next("request", names=["assign", "delete", "shut down"])
        free = {name for name, job in state.items() if job is None}
        if message.name == "shut down":
            return Break(state)
        if message.name == "assign":
            for name in list(free)[: message.body["count"]]:  # expect: W108
                c.step(f"assign {name}", process, name)  # expect: W131
                state[name] = message.body["job"]
        else:
            for name in sorted(name for name, job in state.items() if job == message.body["job"]):
                c.step(f"free {name}", process, name)
                state[name] = None
        return Continue(state)

    return ctx.loop("requests", serve, dict(nodes))


# An expense that a person accepts (expense): nothing is wrong.
@workflow(name="temporal.expense")
def expense(ctx: Context, number: str):
    ctx.step("create", list_records, "expense", number)
    try:
        verdict = ctx.queue.next("verdict", timeout=timedelta(days=10))
    except MessageTimeoutError:
        return "expired"
    if verdict.body != "approved":
        return "rejected"
    ctx.step("pay", process, number)
    return "paid"
