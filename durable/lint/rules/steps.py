"""Hints about what one step does."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final
from urllib.parse import urlsplit

from durable.lint.facts import Call, Facts, Step
from durable.lint.known import SERVICES, is_write, service_of
from durable.lint.modules import Module, is_class_name
from durable.lint.rules.base import Report, Rule
from durable.lint.values import Text

_FEW: Final = 2  # calls of one service: to ask whether something is done, and to do it
_ROW_WRITES: Final = frozenset({"save", "asave", "create", "acreate", "update", "aupdate", "delete", "bulk_create"})
_KEYS: Final = ("idempot", "current_step", "dedup")


class SeveralServices(Rule):
    """Several services in one step."""

    id = "W151"
    level = "hint"
    title = "A step calls several services"
    why = "When the second call fails, the first one is repeated with it."
    fix = "Give each call a step of its own, with retries of its own."

    def check(self, facts: Facts) -> Iterator[Report]:
        if _is_whole(facts):
            return
        for step in facts.steps:
            services = sorted(_services(step))
            calls = [each for each in step.calls if each.kind in SERVICES and _is_request(each)]
            if len(services) > 1:
                yield Report(*_place(step), f"The step calls {', '.join(services)}.")
            elif len(calls) > _FEW:
                yield Report(*_place(step), f"The step makes {len(calls)} calls of services.")


class WholeWorkflow(Rule):
    """A workflow that is one step."""

    id = "W152"
    level = "hint"
    title = "A whole workflow is one step"
    why = "Nothing is recorded before the step's end: whatever fails, all of it is done again."
    fix = "Make a step of each call of a service and of each change of rows."

    def check(self, facts: Facts) -> Iterator[Report]:
        for step in facts.steps if _is_whole(facts) else ():
            if len(_services(step)) > 1 or _calls_and_then_writes(step):
                yield Report(*_place(step), f"All that `{facts.name}` does is in this step.")


class NoKey(Rule):
    """Sending twice."""

    id = "W153"
    level = "hint"
    title = "A step charges, sends or posts without a key"
    why = "A process can die after the service has done it and before that is recorded. Then the step runs again."
    fix = (
        "Pass current_step().idempotency_key to the service, ask it first whether it is done, or, if it only writes rows of "
        "your own database, use atomic=True."
    )

    def check(self, facts: Facts) -> Iterator[Report]:
        for step in facts.steps:
            atomic = step.options.get("atomic")
            if isinstance(atomic, ast.Constant) and atomic.value is True:
                continue
            if any(word in ast.unparse(node).lower() for _, node in step.functions for word in _KEYS):
                continue
            asked: set[str] = set()
            for call in step.calls:
                service = _service(call)
                is_acting = call.kind == "service" or (call.kind == "network" and is_write(call.name))
                if is_acting and service not in asked:
                    yield Report(*_place(step), f"`{call.name}` runs again if the process dies before it is recorded.")
                    break
                if call.kind == "network":
                    asked.add(service)


def _is_request(call: Call) -> bool:
    """Return True if a call of a library asks a service, as `requests.get` does, and makes no client of one."""
    return not is_class_name(call.name)


def _calls_and_then_writes(step: Step) -> bool:
    """Return True if a service is called, and then rows are written."""
    kinds = [
        "write" if each.kind == "query" and each.name.rpartition(".")[2] in _ROW_WRITES else each.kind
        for each in step.calls
        if each.kind == "query" or _is_request(each)
    ]
    return "network" in kinds and "write" in kinds[kinds.index("network") :]


def _place(step: Step) -> tuple[Module, int]:
    return step.operation.module, step.operation.line


def _services(step: Step) -> set[str]:
    return {_service(each) for each in step.calls if each.kind in SERVICES} - {""}


def _service(call: Call) -> str:
    """Return which service a call reaches: the host of its address, else its package; "" if that is not known."""
    package = service_of(call.name)
    if package not in ("requests", "httpx", "aiohttp", "urllib", "urllib3"):
        return package
    given = call.node.args if isinstance(call.node, ast.Call) else []
    for node in given[:2]:
        first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
        if isinstance(first, ast.FormattedValue):
            first = first.value
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and "//" in first.value:
            return _host(first.value)
        if isinstance(first, ast.Name) and first.id.isupper():
            known = call.module.value(first.id)
            return _host(known.text) if isinstance(known, Text) else first.id
    return ""


def _host(address: str) -> str:
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""


def _is_whole(facts: Facts) -> bool:
    return len(list(facts.own())) == 1


STEPS: tuple[Rule, ...] = (SeveralServices(), WholeWorkflow(), NoKey())
