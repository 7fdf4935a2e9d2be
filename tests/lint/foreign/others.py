"""Four workflows after ideas of the examples of Prefect and Inngest."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import requests
from django.core.mail import send_mail

from durable import Context, MessageTimeoutError, workflow

cache = {}


def fetch(url):
    return requests.get(url, timeout=10).json()


def clean(rows):
    return [row for row in rows if row]


def load(rows, target):
    Path(target).write_text(json.dumps(rows))


def mail(address, text):
    send_mail("Hello", text, "shop@example.org", [address])


# Extract, transform, load (Prefect).
@workflow(name="prefect.etl")
def etl(ctx: Context, url: str):
    rows = ctx.step("extract", fetch, url, max_retries=3)
    cleaned = ctx.step("transform", clean, rows)
    target = os.environ["TARGET"]  # expect: W104
    ctx.step("load", load, cleaned, target)
    with open("report.txt", "a") as report:  # expect: W105
        report.write(f"{len(cleaned)} rows\n")


# Stars of repositories, in parallel (Prefect's tutorial), with a cache in memory.
@workflow(name="prefect.stars")
def stars(ctx: Context, repositories: list):
    def count(repository):
        if repository not in cache:
            cache[repository] = fetch(f"https://api.example.org/{repository}")
        return cache[repository]

    with ThreadPoolExecutor() as pool:  # expect: W107
        found = list(pool.map(lambda each: ctx.step(f"stars {each}", count, each), repositories))
    return dict(zip(repositories, found))


# Mails to a new customer, some days apart (Inngest).
@workflow(name="inngest.onboarding")
def onboarding(ctx: Context, address: str):
    ctx.step("welcome", mail, address, "Welcome")  # expect: W153
    ctx.sleep("before tips", "3 days")
    try:
        ctx.queue.next("activated", timeout="3 days")
    except MessageTimeoutError:
        ctx.step("tips", mail, address, "Some tips")  # expect: W153
    except:  # expect: W144
        ctx.logger.error("no tips")


# An abandoned cart (Inngest): wait for an event, then decide.
@workflow(name="inngest.cart")
def cart(ctx: Context, event: dict):
    bought = ctx.queue.next_batch("bought", timeout="24 hours")
    if bought:
        return "bought"
    items = ctx.step("items", fetch, event["url"])
    for item in items:
        ctx.step("reserve", print, item)  # expect: W133
    requests.post("https://events.example.org", json=event)  # expect: W106
    ctx.step("remind", mail, event["address"], "Your cart")  # expect: W153
    return "reminded"
