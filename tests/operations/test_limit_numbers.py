"""The numbers of limits that code and settings say are written after `migrate`."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command

from durable.models import Limit
from durable.operations import limits

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_deploy_that_migrates_writes_the_numbers_of_its_code(settings: Any) -> None:
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"numbers-a": {"at_once": 4}, "numbers-b": {"at_once": 1}}}
    call_command("migrate", verbosity=0)
    found = Limit.objects.filter(name__startswith="numbers-").order_by("name")
    assert list(found.values_list("name", "at_once", "override")) == [("numbers-a", 4, None), ("numbers-b", 1, None)]
    limits.set_limit("numbers-b", 9)
    settings.DURABLE = {**settings.DURABLE, "LIMITS": {"numbers-a": {"at_once": 5}, "numbers-b": {"at_once": 2}}}
    assert limits.synchronise() == ["numbers-a", "numbers-b"]
    assert limits.synchronise() == []
    assert list(found.values_list("at_once", "override")) == [(5, None), (2, 9)]
