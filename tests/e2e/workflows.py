"""Workflows of the end-to-end tests, for real workers."""

import ctypes
import os
import resource
import signal
import time

import psutil

import durable
from durable import Break, Context, Continue, workflow


@workflow(name="e2e.collect")
def collect(ctx: Context, expected: int) -> list[int]:
    """Receive messages until `expected` of them have come; their bodies in the order of receipt."""

    def receive(c: Context, got: list[int]) -> Break | Continue:
        batch = c.queue.next_batch("numbers", names=["numbers"], count=3)
        seen = c.step("note", lambda: [*got, *(message.body for message in batch)])
        return Break(seen) if len(seen) >= expected else Continue(seen)

    received: list[int] = ctx.loop("receive", receive, state=[])
    return received


#: How a step can take its process along: by leaving, by a fault of native code, and as the kernel does when memory is
#: out.
WAYS = {
    "exit": lambda: os._exit(9),
    "segfault": lambda: ctypes.string_at(0),
    "oom": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


@workflow(name="e2e.killer")
def killer(ctx: Context, way: str) -> None:
    """Has a step that takes its process along, each time."""
    ctx.step(f"kill by {way}", WAYS[way], max_retries=1)


def hoard() -> int:
    """Allocate until there is no more memory under a limit that is near; only this step's allocations fail."""
    unlimited = resource.getrlimit(resource.RLIMIT_AS)
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), unlimited[1]))
    hoarded = []
    try:
        while True:
            hoarded.append(bytearray(8 << 20))
    finally:
        hoarded.clear()
        resource.setrlimit(resource.RLIMIT_AS, unlimited)


@workflow(name="e2e.hoarder")
def hoarder(ctx: Context) -> None:
    """Has a step that exhausts the memory of its process, each time."""
    ctx.step("hoard", hoard, max_retries=1, retry_backoff_base=0)


@workflow(name="e2e.bystander")
def bystander(ctx: Context, number: int) -> int:
    """Does a little work."""
    doubled: int = ctx.step("double", lambda: number * 2)
    return doubled


def double_slowly(number: int) -> int:
    """Take so long that others begin and end meanwhile."""
    time.sleep(0.3)
    return number * 2


@workflow(name="e2e.slow_bystander")
def slow_bystander(ctx: Context, number: int) -> int:
    """Has a step that is not tried a second time."""
    doubled: int = ctx.step("double slowly", double_slowly, number, max_retries=0)
    return doubled


@workflow(name="e2e.listen")
def listen(ctx: Context, key: str, within: str | None, expected: int) -> list[int]:
    """Wait for events until `expected` of them have come; their bodies in the order in which they came."""

    def receive(c: Context, got: list[int]) -> Break | Continue:
        seen = [*got, c.event("news", "e2e.news", key=key, within=within)]
        return Break(seen) if len(seen) >= expected else Continue(seen)

    received: list[int] = ctx.loop("receive", receive, state=[])
    return received


def publish(key: str, number: int, event_id: str) -> None:
    """Publish a number, once."""
    durable.publish("e2e.news", number, key=key, id=event_id)


@workflow(name="e2e.tell")
def tell(ctx: Context, key: str, count: int) -> None:
    """Publish numbers, each in a step of its own."""
    for number in range(count):
        ctx.step(f"publish {number}", publish, key, number, f"{ctx.run_id}.{number}")
