"""Rules of moments."""

from __future__ import annotations

from collections.abc import Iterator

from durable.lint.facts import Facts
from durable.lint.rules.base import Report, Rule
from durable.lint.values import NaiveMoment


class Naive(Rule):
    """Moments without a time zone."""

    id = "W111"
    level = "error"
    title = "A moment has no time zone"
    why = "durable refuses naive moments: a worker in another zone would mean another moment. ctx.now() is aware."
    fix = "Give it a zone: datetime(2026, 5, 1, tzinfo=UTC), or add a timedelta to ctx.now()."

    def check(self, facts: Facts) -> Iterator[Report]:
        for operation in facts.own():
            moment = operation.keywords.get("moment" if operation.kind == "sleep_until" else "until")
            if operation.kind == "sleep_until" and len(operation.args) > 1:
                moment = operation.args[1]
            if moment is not None and isinstance(moment.value, NaiveMoment):
                yield Report(operation.module, operation.line, f"`{operation.kind}` gets a moment without a time zone.")
        for module, node, workflow in facts.usings:
            if "deadline" in workflow.options and isinstance(workflow.options["deadline"][1].value, NaiveMoment):
                yield Report(module, node.lineno, "The deadline is a moment without a time zone.")
        for comparison in facts.comparisons:
            yield Report(
                comparison.module, comparison.node.lineno, "A moment without a time zone is compared with ctx.now()."
            )


TIMES: tuple[Rule, ...] = (Naive(),)
