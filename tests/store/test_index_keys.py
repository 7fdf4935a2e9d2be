"""Indexes fit into every database: a key of MySQL has 3,072 bytes at most, one of PostgreSQL a third of a page."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, Final

import pytest
from django.apps import apps
from django.db import models

from durable.models import Run, RunTag

MYSQL: Final[Any] = SimpleNamespace(vendor="mysql", data_types={"CharField": "varchar(%(max_length)s)"})
MOST: Final = 3_072


def length(field: models.Field[Any, Any]) -> int:
    """The most bytes of a column in a key of MySQL."""
    target: Any = field.target_field if field.is_relation else field  # type: ignore[attr-defined]
    if not isinstance(target, models.CharField):
        return 9  # numbers, times and booleans, one of them for NULL
    declared: Any = target.db_type(MYSQL)
    [characters] = re.findall(r"\((\d+)\)", declared)
    return 4 * int(characters) + 3  # the length, and whether it is NULL


def keys() -> list[Any]:
    found = []
    for model in apps.get_app_config("durable").get_models():
        unique = [each for each in model._meta.constraints if isinstance(each, models.UniqueConstraint)]
        for each in (*model._meta.indexes, *unique):
            fields = [model._meta.get_field(name.removeprefix("-")) for name in each.fields]
            found.append(pytest.param(fields, id=each.name))
    return found


@pytest.mark.parametrize("fields", keys())
def test_a_key_fits_into_mysql(fields: list[models.Field[Any, Any]]) -> None:
    assert sum(map(length, fields)) <= MOST


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
