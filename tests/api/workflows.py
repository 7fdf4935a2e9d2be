"""What the tests of the REST interface run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from durable import Context, workflow


@workflow(name="tests.api.add")
def add(ctx: Context, one: Any, other: Any = 1) -> Any:
    """Add two things."""
    return ctx.step("add", lambda: one + other)


@workflow(name="tests.api.ask")
def ask(ctx: Context, secret: str = "") -> str:
    message = ctx.queue.next("question", names=["question"], completable=True)
    ctx.step("think", str, f"{secret}{message.body}")
    message.complete({"answer": message.body})
    done: str = ctx.queue.next("end", names=["end"]).body
    return done


@workflow(name="tests.api.refuse")
def refuse(ctx: Context) -> None:
    message = ctx.queue.next("order", completable=True)
    message.refuse(f"{message.body['sku']} is out of stock")


@workflow(name="tests.api.approve")
def approve(ctx: Context, form: str | None = None) -> bool:
    return ctx.ask_person("approve", form).approved


@dataclass(frozen=True)
class Verdict:
    """What the workflow below is told."""

    by: int
    note: str = ""


class Settings(BaseModel):
    """What has a default."""

    default: str
    token: str = Field("s3cret", examples=["s3cret too"])


@workflow(name="tests.api.typed", messages={"verdict": Verdict, "cancel": None, "settings": Settings})
def typed(ctx: Context) -> str:
    return f"by {ctx.queue.next('verdict').body.by}"


@workflow(name="tests.api.charge")
def charge(ctx: Context, order: Any = 42, amount: int = 990, hint: str = "timeout") -> Any:
    """Charge a card, without an answer of the bank."""

    def charge_card(_order: Any, _amount: int) -> None:
        raise OSError(hint)

    return ctx.step("charge", charge_card, order, amount, once=True)


@workflow(name="tests.api.fail")
def fail(ctx: Context, secret: str = "") -> None:
    def break_down() -> None:
        raise ValueError("broken")

    ctx.step("break", break_down, max_retries=0)


@workflow(name="tests.api.loop")
def loop(ctx: Context, iterations: int) -> int:
    for number in range(iterations):
        ctx.step(f"step {number}", int)
    ctx.sleep("rest", "1 day")
    return iterations
