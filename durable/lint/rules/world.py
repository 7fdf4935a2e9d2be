"""Rules of the code between steps: it reads no clock and no dice, and reaches nothing outside of the process."""

from __future__ import annotations

from collections.abc import Iterator

from durable.lint.facts import Facts
from durable.lint.rules.base import Report, Rule

_AGAIN = "The code between steps runs again in each pass, after each sleep, message and crash."


class _CallRule(Rule):
    """A call of one of `kinds` in the code between steps."""

    kinds: frozenset[str]
    says: str

    def check(self, facts: Facts) -> Iterator[Report]:
        for call in facts.calls:
            if call.kind in self.kinds and not call.in_name:
                yield Report(call.module, call.node.lineno, f"{_called(call.name)} {self.says} between steps.")


def _called(name: str) -> str:
    short = name.removeprefix("builtins.").removeprefix("datetime.").removeprefix("django.utils.")
    return f"`{short}`"


class Clock(_CallRule):
    """The clock."""

    id = "W101"
    level = "error"
    title = "The clock is read between steps"
    why = f"{_AGAIN} Each pass reads another time, and may decide otherwise."
    fix = "Write ctx.now(), which is the same in each pass, or read the clock in a step."
    kinds = frozenset({"clock"})
    says = "reads the clock"


class Dice(_CallRule):
    """Random numbers."""

    id = "W102"
    level = "error"
    title = "Random numbers are drawn between steps"
    why = f"{_AGAIN} Each pass draws other numbers."
    fix = "Write ctx.random, whose numbers are the same in each pass, or draw in a step."
    kinds = frozenset({"dice"})
    says = "draws a random value"


class Uuid(_CallRule):
    """Random ids."""

    id = "W103"
    level = "error"
    title = "A UUID is made between steps"
    why = f"{_AGAIN} Each pass makes another UUID."
    fix = "Write ctx.uuid4(), or make the UUID in a step."
    kinds = frozenset({"uuid"})
    says = "makes another UUID in each pass"


class Environment(_CallRule):
    """Environment variables and the host."""

    id = "W104"
    level = "warning"
    title = "The environment is read between steps"
    why = "The next pass may run in another process, on another host, after a deploy."
    fix = "Read it in a step, or take it from Django's settings if it never changes while runs are open."
    kinds = frozenset({"environment"})
    says = "reads the environment of this process"


class Files(_CallRule):
    """Files."""

    id = "W105"
    level = "error"
    title = "A file is used between steps"
    why = f"{_AGAIN} The next pass may run on another host, and writes are repeated."
    fix = "Put the file's use into a step, and return what the workflow needs of it."
    kinds = frozenset({"files"})
    says = "uses a file"


class Network(_CallRule):
    """The network and other processes."""

    id = "W106"
    level = "error"
    title = "The network or another process is used between steps"
    why = f"{_AGAIN} So the call is repeated, and its answer may differ."
    fix = "Put the call into a step: ctx.step(name, function, ...)."
    kinds = frozenset({"network", "process"})
    says = "reaches another service or process"


class Threads(_CallRule):
    """Threads and tasks."""

    id = "W107"
    level = "error"
    title = "Threads or tasks are started between steps"
    why = "The order in which they go on differs from pass to pass, and one context serves one line of code."
    fix = "Use ctx.join or ctx.race: each branch gets a context of its own."
    kinds = frozenset({"threads"})
    says = "starts concurrent work that durable does not know of"


class Query(_CallRule):
    """The ORM, and reads of other runs."""

    id = "W109"
    level = "error"
    title = "The database is used between steps"
    why = f"{_AGAIN} Rows may have changed since, and a write is repeated."
    fix = "Put it into a step that returns what the workflow needs, with atomic=True if it writes."
    kinds = frozenset({"query"})
    says = "uses the database"


class Sleep(_CallRule):
    """Sleeps of the thread."""

    id = "W110"
    level = "error"
    title = "The thread sleeps instead of the run"
    why = "The worker's slot is held meanwhile, and each later pass sleeps again."
    fix = "Write ctx.sleep(name, duration): no worker waits."
    kinds = frozenset({"sleep"})
    says = "holds the worker"


class Order(Rule):
    """Operations in the order of a set."""

    id = "W108"
    level = "error"
    title = "Operations follow the order of a set"
    why = (
        "The order of a set of texts differs from process to process, so the next pass comes to other operations first."
    )
    fix = "Iterate over sorted(...)."

    def check(self, facts: Facts) -> Iterator[Report]:
        for operation in facts.own():
            for branch in operation.path:
                if branch.kind == "loop" and branch.origins:
                    text = min(each.text for each in branch.origins)
                    yield Report(
                        operation.module,
                        int(getattr(branch.node, "lineno", operation.line)),
                        f"This loop has operations, in the order of the set `{text}`.",
                    )
                    break


WORLD: tuple[Rule, ...] = (
    *(Clock(), Dice(), Uuid(), Environment(), Files(), Network(), Threads(), Order(), Query(), Sleep()),
)
