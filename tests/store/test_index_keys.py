"""The longest texts fit into the indexes: a key of PostgreSQL has at most a third of a page."""

from __future__ import annotations

import random
from datetime import UTC, datetime

import pytest

from durable.models import Run, RunTag


@pytest.mark.django_db
@pytest.mark.parametrize(("first", "last"), [(0x20000, 0x2A6D0), (0xD800, 0xDFFF)], ids=["4 bytes", "surrogates"])
def test_the_longest_tag_fits_where_nothing_can_be_compressed(first: int, last: int) -> None:
    dice = random.Random(1)

    def text(low: int, high: int) -> str:
        return "".join(chr(dice.randint(low, high)) for _ in range(200))

    now = datetime(2026, 1, 1, tzinfo=UTC)
    run = Run.objects.create(id=text(0x20000, 0x2A6D0), workflow="w", queue="q", input="[]", created_at=now)
    name, value = text(0x20000, 0x2A6D0), text(first, last)
    RunTag.objects.create(run=run, name=name, value=value, start_value=value, created_at=now)
    assert RunTag.objects.get(name=name, value=value).run == run
