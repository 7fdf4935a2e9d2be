"""Eleven workflows after ideas of DBOS's demo applications."""

import time
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import boto3
import requests
from django.core.mail import send_mail
from django.db import models

from durable import Context, step, workflow

s3 = boto3.client("s3")
WIDGET = 1


class Order(models.Model):
    class Meta:
        app_label = "foreign"


class Product(models.Model):
    class Meta:
        app_label = "foreign"


@step(atomic=True)
def create_order():
    return Order.objects.create(status="pending").pk


@step(atomic=True)
def reserve():
    return Product.objects.filter(pk=WIDGET, inventory__gt=0).update(inventory=models.F("inventory") - 1) > 0


@step(atomic=True)
def release():
    Product.objects.filter(pk=WIDGET).update(inventory=models.F("inventory") + 1)


@step(atomic=True)
def update_status(order_id, status):
    Order.objects.filter(pk=order_id).update(status=status)


# Checkout, payment, dispatch (widget-store).
@workflow(name="dbos.dispatch")
def dispatch(ctx: Context, order_id: int):
    for _ in range(10):
        ctx.sleep("a second", 1)  # expect: W133
        ctx.step(update_status, order_id, "on its way")  # expect: W133


@workflow(name="dbos.checkout")
def checkout(ctx: Context):
    order_id = ctx.step(create_order)
    if not ctx.step(reserve):
        ctx.logger.error("nothing left for order %s", order_id)
        ctx.step(update_status, order_id, "cancelled")
        return None
    payment = ctx.queue.next("payment", timeout="1 hour")
    if payment.body == "paid":
        ctx.step(update_status, order_id, "paid")
        dispatch.start(order_id)  # expect: W146
    else:
        ctx.step(release)
        ctx.step(update_status, order_id, "cancelled")
    return str(order_id)


# Copy a bucket, a run for each file (s3mirror).
def list_bucket(bucket):
    return [each["Key"] for each in s3.list_objects_v2(Bucket=bucket)["Contents"]]


def transfer(source, target, key):
    s3.copy({"Bucket": source, "Key": key}, target, key)


@workflow(name="dbos.mirror")
def mirror(ctx: Context, source: str, target: str, tasks: list):
    keys = ctx.step("list source", list_bucket, source)
    there = set(ctx.step("list target", list_bucket, target))
    for task in tasks:
        task["started"] = True  # expect: W123
    missing = set(keys) - there
    branches = {}
    for key in missing:
        branches[key] = lambda c: c.step("copy", transfer, source, target, key)  # expect: W135
    ctx.join("files", branches)
    return len(branches)


# A research agent that asks again and again (hacker-news-agent).
def search(topic):
    return requests.get("https://news.example.org/search", params={"q": topic}, timeout=5).json()


def evaluate(topic, stories):
    return {"topic": topic, "is_enough": len(stories) > 5, "next": None}


@workflow(name="dbos.research")
def research(ctx: Context, topic: str, rounds: int):
    status = {"created_at": datetime.now().isoformat(), "rounds": 0}  # expect: W101
    findings = []
    current = topic
    while status["rounds"] < rounds:
        status["rounds"] += 1
        stories = ctx.step(f"search {current}", search, current)
        found = ctx.step(f"evaluate {status['rounds']}", evaluate, topic, stories)
        findings.append(found)
        if found["is_enough"]:
            break
        current = found["next"] or current
    return findings


# Index documents that are downloaded to a file (document-detective), and a refund that a person approves.
def download(url):
    with TemporaryDirectory() as directory:
        path = Path(directory) / "document.pdf"
        path.write_bytes(requests.get(url, timeout=60).content)
        return path.read_bytes().decode("latin-1").split("\f")


@workflow(name="dbos.index")
def index(ctx: Context, urls: list):
    pages = 0
    for url in urls:
        found = ctx.step(f"download {url}", download, url)
        for number, page in enumerate(found):
            ctx.step(f"index {url} {number}", print, page)
        pages += len(found)
    time.sleep(5)  # expect: W110
    return pages


@workflow(name="dbos.refund")
def refund(ctx: Context, order_id: int):
    order = Order.objects.get(pk=order_id)  # expect: W109
    if order.price > 1000:
        ctx.step("ask", lambda: send_mail("Approve?", str(order_id), "shop@example.org", ["boss@example.org"]))  # expect: W153
        answer = ctx.queue.next("approval", timeout="7 days")
        ctx.step("set status", update_status, order_id, answer.body)
    else:
        ctx.step(update_status, order_id, "refunded")


# One run for each tenant, which waits for a run of a queue with a limit (queue-patterns).
@workflow(name="dbos.fair")
def fair(ctx: Context, tenant: str):
    time.sleep(5)  # expect: W110
    return tenant


@workflow(name="dbos.manager")
def manager(ctx: Context, tenant: str):
    return ctx.child("work", fair.using(limits=["tenants"]), tenant)  # expect: W161


# Earthquakes of the last hour, each written once (earthquake-tracker): nothing is wrong.
class Quake(models.Model):
    class Meta:
        app_label = "foreign"


def quakes_between(start, end):
    query = {"starttime": start.isoformat(), "endtime": end.isoformat()}
    return requests.get("https://quakes.example.org/query", params=query, timeout=10).json()["features"]


@step(atomic=True)
def record_quake(quake):
    _, is_new = Quake.objects.update_or_create(id=quake["id"], defaults={"place": quake["place"]})
    return is_new


@workflow(name="dbos.quakes")
def quakes(ctx: Context):
    end = ctx.scheduled_for or ctx.now()
    found = ctx.step("fetch", quakes_between, end - timedelta(hours=1), end)
    new = 0
    for quake in found:
        if ctx.step(f"record {quake['id']}", record_quake, quake):
            new += 1
            ctx.logger.info("new: %s", quake["place"])
    return new


# Alerts of new comments, of which a set in memory knows those that were sent (hackernews-alerts).
seen = set()


def post_to_chat(text):
    requests.post("https://chat.example.org/messages", json={"text": text}, timeout=10)


@workflow(name="dbos.alerts")
def alerts(ctx: Context, topic: str):
    for comment in ctx.step("comments", search, topic):
        if comment["id"] in seen:  # expect: W122
            continue
        seen.add(comment["id"])
        ctx.step(f"post {comment['id']}", post_to_chat, comment["text"])  # expect: W153


# Agents that ask a person, in a table in memory (agent-inbox).
agents = {}


@workflow(name="dbos.agent")
def agent(ctx: Context, name: str, task: str):
    agent_id = str(ctx.uuid4())
    agents[agent_id] = {
        "name": name,
        "created_at": datetime.now().isoformat(),  # expect: W101
        "status": "waiting",
    }
    answer = ctx.queue.next("answer", names=[f"answer-{agent_id}"])
    agents[agent_id]["status"] = "approved" if answer.body == "confirm" else "denied"  # expect: W122
    return agents[agent_id]["status"]
