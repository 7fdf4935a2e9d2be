"""Workflows of every shape that operators look at."""

from dataclasses import dataclass
from typing import Any

from durable import Break, Context, Continue, CriticalError, RetryLater, RollbackContext, current_step, workflow
from durable.errors import MessageNotAcceptedError


@dataclass(frozen=True)
class Verdict:
    """What `declaring` is told."""

    by: int
    note: str = ""


SWITCH = {"broken": False, "rollback_broken": False}
BROKEN = {1, 2}  # the bills that fail while the switch is on


class GatewayTimeout(Exception):
    pass


def value_of(value: Any) -> Any:
    return value


def charge(order_id: Any) -> str:
    if SWITCH["broken"]:
        raise GatewayTimeout(f"no answer for {order_id}")
    return f"charged {order_id}"


def refund(_rollback: RollbackContext, _output: Any) -> None:
    if SWITCH["rollback_broken"]:
        raise CriticalError("the bank is closed")


@workflow(name="tests.quick")
def quick(ctx: Context, value: Any = None) -> Any:
    return ctx.step("only", value_of, value)


def billed(number: int) -> str:
    if SWITCH["broken"] and number in BROKEN:
        raise CriticalError(f"the bank refused bill {number}")
    return f"bill {number}"


@workflow(name="tests.bill")
def bill(ctx: Context, number: int) -> str:
    return ctx.step("charge", billed, number)


@workflow(name="tests.billing")
def billing(ctx: Context, size: int) -> int:
    bills = [ctx.start_child(f"bill {number}", bill, number) for number in range(size)]
    return len([each.result(f"paid {number}") for number, each in enumerate(bills)])


@workflow(name="tests.stopping")
def stopping(ctx: Context, size: int) -> str:
    """A run that fails in its map while the bank is away."""
    ctx.map("bills", bill, [(number,) for number in range(size)], at_once=1, on_failure="stop")
    return "billed"


@workflow(name="tests.night")
def night(ctx: Context, size: int) -> dict[str, int]:
    """Bill each number, and report; a bill that fails stops no other."""
    numbers = ctx.step("numbers", value_of, list(range(size)))
    bills = ctx.map("bills", bill, [(number,) for number in numbers], on_failure="finish")
    ctx.step("report", value_of, len(bills.failed))
    return {"failed": len(bills.failed)}


@workflow(name="tests.mistaken")
def mistaken(ctx: Context, order: dict[str, Any]) -> Any:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", value_of, 1, rollback=refund)
    return order["missing" if SWITCH["broken"] else "id"]


@workflow(name="tests.undoing")
def undoing(ctx: Context) -> str:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", value_of, 1, rollback=refund, max_retries=0)
    ctx.compensate("rejected by the shopkeeper")
    return "rejected"


@workflow(name="tests.undoing_then_mistaken")
def undoing_then_mistaken(ctx: Context) -> Any:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", value_of, 1, rollback=refund, max_retries=0)
    ctx.compensate("rejected by the shopkeeper")
    return value_of({})["missing"]


@workflow(name="tests.forgetful")
def forgetful(ctx: Context) -> None:
    ctx.step("charge", value_of, 1, rollback=refund)  # without a checkpoint before it


@workflow(name="tests.polls")
def polls(ctx: Context) -> int:
    return len(ctx.queue.next_batch("poll", names=["news"], timeout=0))


@workflow(name="tests.approve")
def approve(ctx: Context, order_id: Any = 1) -> str:
    ctx.step("prepare", value_of, order_id)
    return ctx.queue.next("approval", names=["approved", "rejected"], timeout="2 days").name


@workflow(name="tests.asking")
def asking(ctx: Context) -> bool:
    return ctx.ask_person("zq", text="zq", approvals=2).approved


@workflow(name="tests.nap")
def nap(ctx: Context, name: str = "cool off") -> str:
    ctx.sleep(name, "3 hours")
    return "awake"


@workflow(name="tests.stubborn")
def stubborn(ctx: Context, order_id: Any = 1) -> str:
    ctx.step("before", value_of, order_id)
    charged: str = ctx.step("charge", charge, order_id, max_retries=2, retry_backoff_base=360, retry_backoff_max=3600)
    return charged


@workflow(name="tests.switched")
def switched(ctx: Context, order_id: Any = 1) -> str:
    ctx.step("before", value_of, order_id)
    charged: str = ctx.step("charge", charge, order_id, max_retries=0)
    ctx.step("after", value_of, charged)
    return charged


@workflow(name="tests.saga")
def saga(ctx: Context, order_id: Any = 1) -> str:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", value_of, order_id, rollback=refund, max_retries=0)
    raise CriticalError("out of stock")


@workflow(name="tests.saga_of_steps")
def saga_of_steps(ctx: Context, order_id: Any = 1) -> str:
    ctx.rollback_checkpoint("from here")
    ctx.step("reserve", value_of, order_id, rollback=refund, max_retries=0)
    charged: str = ctx.step("charge", charge, order_id, max_retries=0)
    return charged


@workflow(name="tests.undone_in_a_loop")
def undone_in_a_loop(ctx: Context) -> None:
    def body(c: Context, number: int) -> Break | Continue:
        c.step("charge", value_of, number, rollback=refund)
        return Break(number) if number else Continue(number + 1)

    ctx.rollback_checkpoint("from here")
    ctx.loop("turns", body, state=0)
    raise CriticalError("out of stock")


@workflow(name="tests.saga_that_sleeps")
def saga_that_sleeps(ctx: Context) -> None:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", value_of, 1, rollback=refund)
    ctx.sleep("cool off", "3 hours")


@workflow(name="tests.undoing_that_fails")
def undoing_that_fails(ctx: Context) -> None:
    ctx.rollback_checkpoint("from here")
    ctx.step("charge", value_of, 1, rollback=refund)
    ctx.compensate("rejected by the shopkeeper")
    raise CriticalError("and then this")


@workflow(name="tests.broken_branch")
def broken_branch(ctx: Context) -> Any:
    def fail(c: Context) -> None:
        raise CriticalError("no label")

    return ctx.join("ship", {"label": fail, "mail": lambda c: c.step("send", value_of, "M1")})


@workflow(name="tests.parcels")
def parcels(ctx: Context) -> Any:
    def pay(scope: Context) -> Any:
        return scope.step("charge", charge, 1, max_retries=0)

    return ctx.join("ship", {"label": pay, "mail": pay, "stamp": lambda c: c.step("buy", value_of, 1)})


def watermark(number: int) -> int:
    if SWITCH["broken"] and number == ALBUM - 2:
        raise CriticalError("no such image")
    return number


ALBUM = 30


@workflow(name="tests.album")
def album(ctx: Context) -> Any:
    """A join of many branches, one of which fails late."""

    def image(number: int) -> Any:
        return lambda c: c.join("sides", {"front": lambda side: side.step("watermark", watermark, number)})

    return ctx.join("images", {f"image {number}": image(number) for number in range(ALBUM)})


@workflow(name="tests.caught_join")
def caught_join(ctx: Context) -> str:
    def labels(c: Context) -> Any:
        return c.join("ship", {"label": lambda each: each.step("buy", charge, 1, max_retries=0)})

    ctx.try_block("careful", labels, catch=["join"])
    ctx.step("after", value_of, 1)
    return "went on"


@workflow(name="tests.branches")
def branches(ctx: Context) -> Any:
    joined = ctx.join(
        "ship", {"label": lambda c: c.step("buy", value_of, "L1"), "mail": lambda c: c.step("send", value_of, "M1")}
    )
    raced = ctx.race(
        "fastest", {"slow": lambda c: c.sleep("wait", "1 hour"), "fast": lambda c: c.step("run", value_of, "won")}
    )
    block = ctx.try_block("careful", lambda c: c.step("inside", value_of, 1))
    return [joined, raced.winner, block.ok]


@workflow(name="tests.looping")
def looping(ctx: Context, count: int) -> int:
    def body(c: Context, number: int) -> Break | Continue:
        c.step("turn", value_of, number)
        return Break(number) if number + 1 == count else Continue(number + 1)

    total: int = ctx.loop("turns", body, state=0, history_prune_interval=5)
    return total


@workflow(name="tests.odd")
def odd(ctx: Context) -> Any:
    """Names and texts that neither a database nor a page can simply write."""
    ctx.step("\ud800\x00/~%", value_of, "\udfff\x00")

    def fail() -> None:
        raise CriticalError("\ud800 and \x00")

    ctx.try_step("fails\ud83c", fail)
    ctx.queue.next("wait \ud800", names=["\ud800\x00"])
    raise CriticalError("\ud800 at last")


@workflow(name="tests.handled_then_refused")
def refused(ctx: Context) -> None:
    """A failure that the code handles, and an error that it then raises itself."""

    def fail() -> None:
        raise CriticalError("declined")

    if not ctx.try_step("charge", fail).ok:
        raise CriticalError("not paid")


@workflow(name="tests.many")
def many(ctx: Context, count: int) -> int:
    for number in range(count):
        ctx.step(f"step {number}", value_of, number, ephemeral=True)
    return count


@workflow(name="tests.waiting_after_many")
def waiting_after_many(ctx: Context) -> None:
    many.function(ctx, 6)
    ctx.queue.next("answer", names=["verdict"])


def save_half() -> None:
    current_step().save({"row": "row-five-hundred"})
    raise RetryLater("1 hour")


@workflow(name="admin.saving")
def saving(ctx: Context) -> None:
    ctx.step("import", save_half)


@workflow(name="tests.admin.declaring", messages={"verdict": Verdict, "cancel": None})
def declaring(ctx: Context) -> str:
    """Wait for one of the messages that it declares."""
    return ctx.queue.next("answer", names=["verdict", "cancel"]).name


@workflow(name="tests.admin.missending", messages={"verdict": Verdict})
def missending(ctx: Context) -> str:
    """Send what it does not accept, and fail of a message that is older than its declaration."""
    try:
        ctx.queue.send("verdct", {"by": 7})
    except MessageNotAcceptedError:
        ctx.sleep("an hour", "1 hour")
    return f"by {ctx.queue.next('verdict').body.by}"
