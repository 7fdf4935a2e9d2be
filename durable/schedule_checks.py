"""The system check that compares the schedules of the code with their rows.

Only `check --database` and `migrate` run it.
"""

from __future__ import annotations

from collections.abc import Sequence

from django.core.checks import CheckMessage, Tags, Warning, register

from durable.conf import conf
from durable.operations.schedules.sync import differences, has_table


@register(Tags.database)
def check_schedules(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that the rows of schedules are as the code declares them."""
    if conf.DATABASE not in (databases or ()) or not has_table(conf.DATABASE):
        return []
    found = differences()
    if not found:
        return []
    message = f"Schedules differ from the code: {'; '.join(map(str, found[:10]))}."
    hint = "With the newest code, `migrate` and `durable schedules --sync` make the rows as the code says."
    return [Warning(message, hint=hint, id="durable.W089")]
