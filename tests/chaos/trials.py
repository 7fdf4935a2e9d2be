"""The kinds of load that chaos strikes, each with its audit."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from durable.models import Run
from project.shop.models import Product
from tests.chaos import audit
from tests.chaos.families import audit as family_audit
from tests.chaos.families.load import FamilyLoad
from tests.chaos.flow import audit as flow_audit
from tests.chaos.flow.load import FlowLoad
from tests.chaos.limits import audit as limit_audit
from tests.chaos.limits.load import LimitLoad
from tests.chaos.load import Load


@dataclass(frozen=True)
class Trial:
    """A load, what it promises, and how that is audited and told. `is_deadly`: a worker is killed beside each fault."""

    load: Load | FamilyLoad | FlowLoad | LimitLoad
    promises: str
    audit: Callable[[], list[str]]
    told: Callable[[], str]
    is_deadly: bool = False


def trial_of(kind: str, chance: random.Random) -> Trial:
    """Return the trial of this name, with its rows and triggers in the database."""
    if kind == "runs":
        Product.objects.create(slug="counter", name="counter", price=0)
        load = Load()
        return Trial(
            load=load,
            promises="nothing lost, nothing twice, messages once and in order, no sleep too short, counters exact",
            audit=lambda: audit.broken_promises(load),
            told=lambda: f"{len(load.expected)} runs, {load.charges} atomic charges",
        )
    if kind == "limits":
        limited = LimitLoad(chance)
        limit_audit.install()
        return Trial(
            load=limited,
            promises="never more slots held than allowed, none lost, nobody left in a line",
            audit=lambda: limit_audit.broken_promises(limited),
            told=lambda: f"{limit_audit.taken()} slots taken by {len(limited.expected)} runs, {_told(limited.acts)}",
        )
    families = FamilyLoad(chance)
    families.prepare()
    if kind == "flow":
        flow = FlowLoad(chance, families)
        flow_audit.install()
        return Trial(
            load=flow,
            promises="each charge kept or given back as its parent says, no refused child ran, no key twice, no orphan",
            audit=lambda: flow_audit.broken_promises(flow),
            told=lambda: f"{_told(Counter(dict(_kinds())))}, {_told(flow_audit.charges())}, {_told(flow.acts)}",
            is_deadly=True,
        )
    family_audit.install()
    return Trial(
        load=families,
        promises="each end woke its parent and freed its key, one run for each tick, one open run for each key, no orphan",
        audit=lambda: family_audit.broken_promises(families),
        told=lambda: ", ".join(f"{number} of {name}" for name, number in _kinds()),
    )


def _told(numbers: Counter[str]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(numbers.items()))


def _kinds() -> list[tuple[str, int]]:
    names = list(Run.objects.values_list("workflow", flat=True))
    return sorted((name, names.count(name)) for name in set(names))
