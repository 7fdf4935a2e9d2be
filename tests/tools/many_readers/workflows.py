"""A step that emits the moment, again and again."""

import time

from durable import Context, current_step, workflow


def write(chunks: int, every: float) -> int:
    begun = time.monotonic()
    for number in range(chunks):
        time.sleep(max(0.0, begun + number * every - time.monotonic()))
        current_step().emit(time.time())
    return chunks


@workflow(name="tools.many-readers")
def writing(ctx: Context, chunks: int, every: float) -> int:
    return ctx.step("write", write, chunks, every)
