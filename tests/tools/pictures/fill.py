"""Fill an empty database with a day of runs, some of them failed: `python -m tests.tools.pictures.fill`."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.tools.pictures.settings")
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.core.management import call_command  # noqa: E402
from django.utils import timezone  # noqa: E402

from durable import get_run  # noqa: E402
from tests.admin.conftest import Stage, staged  # noqa: E402
from tests.support.rollups import settle  # noqa: E402
from tests.tools.pictures.workflows import (  # noqa: E402
    ANSWERING,
    BROKEN,
    CardDeclined,
    GatewayTimeout,
    SoldOut,
    fulfil,
    renew,
    trip,
)

PASSWORD = "correct horse"  # of a database that is thrown away


@dataclass(frozen=True)
class Start:
    """A run to start at a moment, and the steps that fail in it."""

    at: datetime
    word: str
    workflow: Any
    broken: dict[str, Exception]
    is_quick: bool = False  # once it is recovered, it completes at once


def _planned(now: datetime) -> list[Start]:
    """The runs of the last day, the oldest first."""

    def every(gap: timedelta, times: int, word: str, workflow: Any, **broken: Exception) -> list[Start]:
        steps = {step.replace("_", " "): error for step, error in broken.items()}
        return [Start(now - gap * each, word, workflow, steps) for each in range(1, times + 1)]

    declined = CardDeclined("card ending 4242 was declined")
    refused = ConnectionError("[Errno 111] Connection refused: labels.example:443")
    silent = GatewayTimeout("no answer from pay.example within 9 s")
    starts = [
        *every(timedelta(minutes=7), 200, "order", fulfil),
        *every(timedelta(seconds=24), 20, "order", fulfil),
        *every(timedelta(minutes=51), 27, "renewal", renew),
        *every(timedelta(hours=4.1), 5, "renewal", renew, charge_card=declined),
        *every(timedelta(minutes=11), 12, "order", fulfil, buy_label=refused),
        *(
            replace(each, is_quick=True)
            for each in every(timedelta(seconds=11), 46, "order", fulfil, charge_card=silent)
        ),
        *every(timedelta(hours=3), 4, "trip", trip, book_car=SoldOut("no cars left in Lisbon")),
    ]
    return sorted(starts, key=lambda start: start.at)


def _pass(stage: Stage, start: Start, name: str, number: int) -> None:
    """Start the run and pass it until it has ended or waits for long."""
    stage.now = start.at
    BROKEN.update(start.broken)
    order = number // 3 * 3 + 2 if start.is_quick else number  # such an order needs no approval and no rest
    run = stage.start(start.workflow, order, id=name)
    while run.wake_at is not None and run.wake_at - stage.now < timedelta(minutes=1):
        stage.now = run.wake_at
        run = stage.settle(name)
    if run.waiting_for and number % 12:
        get_run(name).send("approved", {"by": "ada"})
        stage.settle(name)
    BROKEN.clear()


def fill() -> None:
    """Make the runs, and a superuser `ada`."""
    chance = random.Random(7)
    with staged() as stage:
        ANSWERING.append(lambda: stage.advance(seconds=chance.lognormvariate(-0.5, 0.9)))
        for number, start in enumerate(_planned(timezone.now() - timedelta(minutes=1)), start=1000):
            _pass(stage, start, f"{start.word}-{number}", number)
    settle(timezone.now())
    User.objects.create_superuser("ada", password=PASSWORD)


if __name__ == "__main__":
    call_command("migrate", verbosity=0)
    fill()
