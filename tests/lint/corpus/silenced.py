"""Findings that a comment silences, and comments that do not."""

import time

from durable import Context, workflow


@workflow(name="silenced.right")
def right(ctx: Context):
    time.time()  # durable: allow[W101] only for the log
    # durable: allow[W101, W110] measured in the lab
    time.time()
    # durable: allow[W101] the reason is long,
    # so that it takes two lines
    time.time()
    ctx.step(
        "long",
        print,
        time.time(),
        time.time(),
    )  # durable: allow[W101] of no account
    # durable: allow[W101] of no account either
    ctx.step(
        "also long",
        print,
        time.time(),
    )
    for _ in range(  # durable: allow[W101] the head of a loop
        int(time.time())
    ):
        time.time()  # expect: W101


@workflow(name="silenced.wrong")
def wrong(ctx: Context):
    time.time()  # durable: allow[W101]  # expect: W101, W190
    time.time()  # durable: allow[W110] another finding  # expect: W101
    time.time()  # durable: allow[W999] there is none  # expect: W101, W190
    time.time()  # durable: allow the clock  # expect: W101, W190
    text = "# durable: allow[W101] in a text"; time.time()  # expect: W101
