"""The audit: what the rows alone say of the promises, one sentence for each that was broken."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from durable import get_run
from durable.models import Attempt, Entry, QueueMessage, Run, RunRank
from project.shop.models import Charge, Product
from tests.chaos.load import Load

#: In seconds, of the priorities in `tests.chaos.load.RANKS`.
HEAD_STARTS: Final = {None: 0, "10 min": 600, "-1 hour": -3600, "5 s": 5}


def broken_promises(load: Load) -> list[str]:
    """What is wrong; [] if all is well."""
    return [*_runs(load), *_charges(load), *numbers_drawn_twice(), *_attempts(), *_messages(), *_ranks(load)]


def _runs(load: Load) -> Iterator[str]:
    found = set(Run.objects.values_list("pk", flat=True))
    if lost := load.expected.keys() - found:
        yield f"lost: {sorted(lost)}"
    if surplus := found - load.expected.keys():
        yield f"started by a transaction that was rolled back: {sorted(surplus)}"
    for run in Run.objects.all():
        if run.pk in load.expected and (problem := _problem(run, load.expected[run.pk])):
            yield f"{run.pk}: {problem}"


def _ranks(load: Load) -> Iterator[str]:
    """Each run has the rank that its start has said, and has taken its turn."""
    said = {row.run_id: (row.head_start, row.share, row.weight) for row in RunRank.objects.all()}
    for run_id, rank in load.ranks.items():
        head_start = HEAD_STARTS[rank.get("priority")]
        wanted = (head_start, rank.get("share", ""), float(rank.get("weight", 1))) if rank else None
        if said.pop(run_id, None) != wanted:
            yield f"{run_id} has not the rank of its start: {wanted}"
    if said:
        yield f"ranks of runs that were not started with one: {said}"
    for run in Run.objects.exclude(start_tag=None):
        yield f"{run.pk} has ended, and its turn is still to come: {run.start_tag}"


def _problem(run: Run, expected: Any) -> str:
    if expected == "undone":
        is_undone = run.state == "failed" and run.error is not None and run.error.message == "as it has to"
        return "" if is_undone else f"was not compensated: {run.state}, {run.error}, {run.summary}"
    if run.state != "completed":
        return f"is {run.state}: {run.error or run.summary}"
    output = get_run(run.pk).result()
    if expected == "naps":
        return "" if min(output) >= 0.3 else f"slept too short: {output}"
    return "" if output == expected else f"came to {output}, not to {expected}"


def _charges(load: Load) -> Iterator[str]:
    counted = int(Product.objects.get(slug="counter").price)
    if counted != load.charges:
        yield f"the atomic counter says {counted}, and {load.charges} steps have counted"
    wanted = {"count": 8, "parallel": 3, "wander": 6}
    charged = Counter(Charge.objects.values_list("reference", flat=True))
    for run_id in load.expected:
        number = charged.pop(run_id, 0)
        if number != (right := wanted.get(run_id.partition("-")[0], 0)):
            yield f"{run_id} charged {number} times, not {right}"
    if charged:
        yield f"charged and not given back: {charged}"


def numbers_drawn_twice() -> Iterator[str]:
    """Two writers of one run would have drawn the same numbers of its one counter."""
    for run in Run.objects.all():
        rows = Entry.objects.filter(run=run).values_list("ordinal", "metadata__finished_ordinal")
        drawn = [number for row in rows for number in row if number is not None]
        if len(drawn) != len(set(drawn)):
            yield f"{run.pk} was written by two: {sorted(drawn)}"


def _attempts() -> Iterator[str]:
    """Nothing here is recovered, so that each attempt of a step has a number of its own."""
    counted = Counter(Attempt.objects.values_list("run", "location", "number"))
    if twice := [each for each, times in counted.items() if times > 1]:
        yield f"attempts were counted twice: {twice}"


def _messages() -> Iterator[str]:
    for run in Run.objects.all():
        orders = list(QueueMessage.objects.filter(run=run).order_by("order").values_list("order", flat=True))
        if orders != list(range(1, len(orders) + 1)):
            yield f"{run.pk} has messages {orders}"
    if left := QueueMessage.objects.filter(state="pending").count():
        yield f"{left} messages were never received"
    received = Counter(QueueMessage.objects.exclude(received_by="").values_list("run", "id"))
    if any(times > 1 for times in received.values()):
        yield "a message was received twice"
