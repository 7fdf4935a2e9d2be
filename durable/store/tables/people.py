"""Questions to people in a database: asked and closed by passes, answered and handed over by people.

Ordinary ORM statements, because they are rare. The caller has locked the run's row wherever a row changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.db.models import Q, Value
from django.db.models.functions import StrIndex
from django.db.models.lookups import Exact

from durable.core import question_rules as rules
from durable.core.people import ASK, STARTER
from durable.core.records import (
    ENDED,
    ActionOutcome,
    EntryKind,
    EntryStatus,
    QuestionAsked,
    QuestionClosed,
    QuestionRecord,
    QuestionsSought,
    RunState,
)
from durable.models import Child, Entry, OperatorAction, Question
from durable.store.rules import row_rules
from durable.store.tables.rows import QUESTION

_OVER = [*(each.value for each in ENDED), RunState.ROLLING_BACK.value]


def ask(alias: str, run_id: str, asked: Sequence[QuestionAsked], now: datetime) -> None:
    """Write the questions of a commit. One that is there already gets what the code says of it now."""
    for each in asked:
        before = find(alias, each.question_id)
        record = rules.asked(before, run_id, each, now, _starter_of(alias, run_id, each))
        if before is not None:
            if before.run_id == run_id:  # an imported history may name the question of any run
                put(alias, record)
            continue
        earlier = Question.objects.using(alias).filter(run_id=run_id, location=each.location, closed_at__isnull=True)
        earlier.update(closed_at=now, outcome=rules.REPLACED, next_at=None)
        Question.objects.using(alias).bulk_create([Question(**QUESTION.attributes(record))], ignore_conflicts=True)


def _starter_of(alias: str, run_id: str, asked: QuestionAsked) -> str:
    if STARTER not in asked.spec["not_by"]:
        return ""

    def started_by(run_id: str) -> Any:
        rows = OperatorAction.objects.using(alias).filter(run_id=run_id, action__in=row_rules.STARTS)
        rows = rows.filter(outcome=ActionOutcome.DONE.value, actor_id__isnull=False)
        return rows.order_by("created_at", "id").values_list("actor_id", flat=True).first()  # the first one counts

    def parent_of(run_id: str) -> str | None:
        return Child.objects.using(alias).filter(run_id=run_id).values_list("parent_id", flat=True).first()

    return rules.starter_of(run_id, started_by, parent_of)


def close(alias: str, run_id: str, closed: Sequence[QuestionClosed], now: datetime) -> None:
    """Let these questions accept nothing any more."""
    rows = Question.objects.using(alias).filter(run_id=run_id, question_id__in=[each.question_id for each in closed])
    rows.filter(closed_at__isnull=True).update(closed_at=now, outcome=rules.CLOSED, next_at=None)


def find(alias: str, question_id: str) -> QuestionRecord | None:
    """Return the question with this id."""
    row = Question.objects.using(alias).filter(question_id=question_id).values(*QUESTION.names).first()
    return None if row is None else QuestionRecord(**row)


def of_runs(alias: str, run_ids: Sequence[str]) -> list[QuestionRecord]:
    """Return the questions of these runs, in the order in which they were asked."""
    rows = Question.objects.using(alias).filter(run_id__in=list(run_ids)).order_by("asked_at", "pk")
    return [QuestionRecord(**row) for row in rows.values(*QUESTION.names)]


def open_ones(alias: str, sought: QuestionsSought, most: int) -> list[QuestionRecord]:
    """Return open questions that a person may answer, the oldest first, along the index of the open ones.

    Decides as `rules.is_sought`.
    """
    anybody, mine = Q(assignee=""), Q(assignee__in=sorted(sought.keys))
    if sought.permissions is not None:
        held = sorted(sought.permissions)
        anybody &= Q(permission__in=["", *held] if sought.operates else held)
        mine &= Q(permission__in=["", *held])
    rows = Question.objects.using(alias).filter(anybody | mine, closed_at__isnull=True)
    rows = rows.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=sought.now), claimed__in=["", sought.key])
    for each in rules.bars(sought):  # not LIKE, which ignores case on SQLite
        rows = rows.filter(Exact(StrIndex("barred", Value(each)), 0))
    if sought.after is not None:
        moment, question_id = sought.after
        rows = rows.filter(Q(asked_at__gt=moment) | Q(asked_at=moment, question_id__gt=question_id))
    rows = rows.order_by("asked_at", "question_id")
    return [QuestionRecord(**row) for row in rows.values(*QUESTION.names)[:most]]


def waiting(alias: str, records: Sequence[QuestionRecord]) -> set[str]:
    """Return the ids of those questions whose runs still wait for the answer; one statement."""
    wanted = {(each.run_id, each.location): each.question_id for each in records}
    entries = (
        Entry.objects.using(alias)
        .filter(
            run_id__in={run_id for run_id, _ in wanted},
            location__in={location for _, location in wanted},
            kind=EntryKind.MESSAGE.value,
            metadata__status=EntryStatus.PENDING.value,
        )
        .exclude(run__state__in=_OVER)
    )
    found = set()
    for entry in entries.only("run_id", "location", "data"):
        data: Any = entry.data
        if (ask := data.get(ASK)) is not None and wanted.get((entry.run_id, entry.location)) == ask["id"]:
            found.add(ask["id"])
    return found


def put(alias: str, record: QuestionRecord) -> None:
    """Write what has become of a question."""
    values = QUESTION.attributes(record)
    Question.objects.using(alias).filter(question_id=values.pop("question_id")).update(**values)


def due(alias: str, now: datetime, most: int) -> list[QuestionRecord]:
    """Return open questions whose mail or escalation is due."""
    rows = Question.objects.using(alias).filter(closed_at__isnull=True, next_at__isnull=False, next_at__lte=now)
    return [QuestionRecord(**row) for row in rows.order_by("next_at").values(*QUESTION.names)[:most]]


def close_over(alias: str, now: datetime, most: int) -> int:
    """Close questions of runs that have ended; return how many."""
    over = Question.objects.using(alias).filter(closed_at__isnull=True, run__state__in=[each.value for each in ENDED])
    ids = list(over.values_list("pk", flat=True)[:most])
    rows = Question.objects.using(alias).filter(pk__in=ids, closed_at__isnull=True)
    return rows.update(closed_at=now, outcome=rules.ENDED, next_at=None) if ids else 0


def open_again(alias: str, run_id: str) -> None:
    """Open the questions that were closed because the run had ended: it goes on."""
    rows = Question.objects.using(alias).filter(run_id=run_id, outcome=rules.ENDED)
    for row in rows.values(*QUESTION.names):
        put(alias, rules.opened_again(QuestionRecord(**row)))
