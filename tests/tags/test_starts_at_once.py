"""Starts of one run from several threads at once: it has the tags of the start that has made it, and no others."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest

from durable import Context, get_run, workflow
from durable.core.tags import TagValue
from durable.models import Run, RunTag
from tests.support.at_once import at_once, patiently

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.redis]

ROUNDS = 10


@workflow(name="tests.tags_at_once.job")
def job(ctx: Context) -> None:
    ctx.queue.next("add")


@pytest.mark.parametrize("how", ["id", "key", "message", "many"])
def test_a_run_has_the_tags_of_the_start_that_has_made_it(how: str) -> None:
    made: dict[str, int] = {}
    lock = threading.Lock()

    def start(number: int) -> None:
        for each in range(ROUNDS):
            tags: dict[str, TagValue] = {"by": number, f"only-{number}": each}
            patiently(partial(note, number, each, job.using(tags=tags)))

    def note(number: int, each: int, tagged: Any) -> None:
        if how == "id":
            handles = [tagged.using(id=f"r{each}").start()]
        elif how == "key":
            handles = [tagged.using(key=f"k{each}").start()]
        elif how == "message":
            handles = [tagged.using(key=f"k{each}").start_or_send("add", number)]
        else:
            handles = tagged.start_many([(), (), ()], ids=[f"r{each}", f"r{each}", f"s{each}"])
        with lock:
            made.update({handle.id: number for handle in handles if handle.is_new})

    at_once(start)
    assert len(made) == Run.objects.count() == (2 * ROUNDS if how == "many" else ROUNDS)
    for run_id, number in made.items():
        tags = get_run(run_id).tags
        assert tags.keys() == {"by", f"only-{number}"}
        assert tags["by"] == str(number)
        assert run_id in Run.objects.tagged(by=number).values_list("id", flat=True)
    assert RunTag.objects.count() == 2 * len(made)
