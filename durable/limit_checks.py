"""The system check of limits: each limit that a workflow names has a number of slots or a rate."""

from __future__ import annotations

from django.core.checks import CheckMessage, Error, register

from durable.core import registry
from durable.declared_limits import undefined


@register("durable")
def check_limits(**_: object) -> list[CheckMessage]:
    """Check that the settings or a workflow define the limits that workflows name."""
    return [
        Error(
            f'The workflow "{definition.name}" names the limit "{name}", and nobody says how many slots it has.',
            hint=f'Write DURABLE = {{"LIMITS": {{"{name}": {{"at_once": 4}}}}}}, or Limit("{name}", at_once=4).',
            id="durable.E015",
        )
        for definition in registry.all()
        for name in undefined(definition.limits)
    ]
