"""Nine workflows after ideas of Inngest's examples, as somebody writes them who comes from there."""

import asyncio
import hashlib
import json
import random
import time
from datetime import datetime

import requests
from django.core.mail import send_mail
from django.utils import timezone

from durable import AsyncContext, Context, workflow
from durable.errors import MessageTimeoutError


def fetch(url):
    return requests.get(url, timeout=10).json()


def mail(address, text):
    send_mail("Hello", text, "shop@example.org", [address])


# Mails to a new customer, some days apart.
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


# An abandoned cart: wait for an event, then decide.
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


# Two steps beside each other (parallel_steps): the sleeps are in steps.
@workflow(name="inngest.parallel")
async def parallel(ctx: AsyncContext):
    async def first():
        await asyncio.sleep(2)
        return 1

    async def second():
        await asyncio.sleep(2)
        return 2

    done = await ctx.join("both", {"1a": lambda c: c.step("1a", first), "1b": lambda c: c.step("1b", second)})
    return done["1a"] + done["1b"]


# A weekly digest: a function for each user (fan-out).
def users_of_the_week(week):
    return [{"id": number, "address": f"{number}@example.org"} for number in range(week)]


@workflow(name="inngest.digest")
def digest(ctx: Context, user: dict, week: int):
    stories = ctx.step("stories", fetch, f"https://stories.example.org/{week}")
    key = hashlib.sha256(json.dumps(stories, sort_keys=True).encode()).hexdigest()
    ctx.step(f"send {key[:8]}", mail, user["address"], str(stories))  # expect: W153


@workflow(name="inngest.weekly")
def weekly(ctx: Context):
    week = timezone.now().isocalendar().week  # expect: W101
    users = ctx.step("users", users_of_the_week, week)
    for user in users:
        digest.start(user, week)  # expect: W146
    return len(users)


@workflow(name="inngest.weekly_by_map")
def weekly_by_map(ctx: Context, week: int):
    users = ctx.step("users", users_of_the_week, week)
    return len(ctx.map("digests", digest, [(user, week) for user in users]))


# An unpaid invoice: three reminders, then a person is told (wait_for_event in a loop).
@workflow(name="inngest.invoice")
def invoice(ctx: Context, number: int, address: str):
    for attempt in range(1, 4):
        try:
            paid = ctx.queue.next(f"paid {attempt}", names=[f"paid/{number}"], timeout="3 days")
        except MessageTimeoutError:
            ctx.step(f"remind {attempt}", mail, address, f"Reminder {attempt} of {number}")  # expect: W153
        else:
            return paid.body["amount"]
    ctx.step("escalate", mail, "boss@example.org", f"{number} is not paid")  # expect: W153
    return 0


# An agent that plays dice with tools of a table (pydantic_ai).
def ask_model(messages):
    return requests.post("https://model.example.org/answers", json=messages, timeout=60).json()


def roll_dice(guess):
    return random.randint(1, 6) == guess  # expect: W102


def look_up(word):
    return {"word": word}


TOOLS = {"roll": roll_dice, "look up": look_up}


@workflow(name="inngest.dice")
def dice(ctx: Context, guess: int):
    messages = [{"role": "user", "text": f"My guess is {guess}"}]
    for turn in range(10):
        answer = ctx.step(f"ask {turn}", ask_model, messages)  # expect: W153
        if answer["tool"] is None:
            return answer["text"]
        result = TOOLS[answer["tool"]](answer["argument"])
        messages.append({"role": "tool", "text": str(result)})
    return None


# A mail at a moment of the event, and a film that is worked on under a number of its own (sleep_until, video).
@workflow(name="inngest.film")
def film(ctx: Context, event: dict):
    job = f"job-{int(time.time())}"  # expect: W101
    transcript = ctx.step("transcribe", fetch, f"https://films.example.org/{event['film']}")
    ctx.step(f"store {job}", print, transcript)  # expect: W131
    ctx.sleep_until("premiere", datetime.fromisoformat(event["premiere"]))
    ctx.sleep_until("new year", datetime(2027, 1, 1))  # expect: W111
    ctx.step("tell", mail, event["address"], "Now")  # expect: W153
