"""The examples of the guide "Rules of Workflows", each in a right and a wrong form: the ideas, for this engine."""

import random

import requests
from django.core.cache import cache

from durable import Context, current_step, workflow


def charge_if_due(customer_id):
    state = requests.get(f"https://payments.example.org/subscriptions/{customer_id}").json()
    if state["charged"]:
        return
    requests.post(f"https://payments.example.org/subscriptions/{customer_id}", json={"amount": 10})


def charge_blindly(customer_id):
    requests.post(f"https://payments.example.org/subscriptions/{customer_id}", json={"amount": 10})


def charge_with_key(customer_id):
    headers = {"Idempotency-Key": current_step().idempotency_key}
    requests.post(f"https://payments.example.org/subscriptions/{customer_id}", json={"amount": 10}, headers=headers)


@workflow(name="guide.asks_before_it_charges")
def asks_before_it_charges(ctx: Context, customer_id: int):
    ctx.step(f"charge {customer_id} for the month", charge_if_due, customer_id)


@workflow(name="guide.charges_blindly")
def charges_blindly(ctx: Context, customer_id: int):
    ctx.step(f"charge {customer_id} for the month", charge_blindly, customer_id)  # expect: W153
    ctx.step("thank", print, customer_id)


@workflow(name="guide.charges_with_a_key")
def charges_with_a_key(ctx: Context, customer_id: int):
    ctx.step("charge", charge_with_key, customer_id)


def cutest_cat():
    return cache.get("cutest-http-cat")


def picture(cat):
    return requests.get(f"https://http.cat/{cat}").text


def cat_and_picture():
    cat = cache.get("cutest-http-cat")
    return requests.get(f"https://http.cat/{cat}").text


@workflow(name="guide.granular")
def granular(ctx: Context):
    cat = ctx.step("get cutest cat", cutest_cat)
    return ctx.step("fetch cat image", picture, cat)


@workflow(name="guide.two_services_in_one_step")
def two_services_in_one_step(ctx: Context):
    image = ctx.step("get cutest cat", cat_and_picture)  # expect: W151
    ctx.sleep("look at it", 60)
    return image


@workflow(name="guide.all_in_one_step")
def all_in_one_step(ctx: Context):
    return ctx.step("everything", cat_and_picture)  # expect: W152


@workflow(name="guide.state_outside_of_steps")
def state_outside_of_steps(ctx: Context):
    images = []

    def first():
        images.append(cache.get("cutest-http-cat-1"))  # expect: W121

    def second():
        images.append(cache.get("cutest-http-cat-2"))  # expect: W121

    ctx.step("get first", first)
    ctx.step("get second", second)
    ctx.sleep("a nap", "3 hours")
    ctx.step("download one", lambda: picture(images[0]))


@workflow(name="guide.state_of_what_steps_return")
def state_of_what_steps_return(ctx: Context):
    images = ctx.join(
        "cats",
        {
            "first": lambda c: c.step("get", cache.get, "cutest-http-cat-1"),
            "second": lambda c: c.step("get", cache.get, "cutest-http-cat-2"),
        },
    )
    ctx.sleep("a nap", "3 hours")
    chosen = ctx.random.choice([images["first"], images["second"]])
    return ctx.step("download one", picture, chosen)


@workflow(name="guide.dice_between_steps")
def dice_between_steps(ctx: Context):
    images = ctx.step("list", cache.get, "cats")
    chosen = images[random.randrange(len(images))]  # expect: W102
    return ctx.step("download one", picture, chosen)


@workflow(name="guide.dice_in_a_step")
def dice_in_a_step(ctx: Context):
    images = ctx.step("list", cache.get, "cats")
    chosen = ctx.step("choose", lambda: random.choice(images))
    return ctx.step("download one", picture, chosen)


@workflow(name="guide.changes_the_event")
def changes_the_event(ctx: Context, event: dict):
    def look_up():
        event["data"] = cache.get(event["user"])  # expect: W123

    ctx.step("a step that changes the event", look_up)
    ctx.step("use it", print, event["data"])


@workflow(name="guide.returns_what_it_learns")
def returns_what_it_learns(ctx: Context, event: dict):
    data = ctx.step("a step that returns", cache.get, event["user"])
    ctx.step("use it", print, data)


@workflow(name="guide.name_of_dice")
def name_of_dice(ctx: Context):
    ctx.step(f"step {random.random()}", cutest_cat)  # expect: W131


@workflow(name="guide.name_of_a_step")
def name_of_a_step(ctx: Context):
    cats = ctx.step("list", cache.get, "cats")
    for cat in cats:
        ctx.step(f"fetch {cat}", picture, cat)
