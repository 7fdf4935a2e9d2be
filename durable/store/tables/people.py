"""Questions to people in a database: asked and closed by passes, answered and handed over by people.

Also the links by which others answer: opened and closed by passes, used by answers from outside.
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
    LinkClosed,
    LinkOpened,
    LinkRecord,
    QuestionAsked,
    QuestionClosed,
    QuestionRecord,
    QuestionsSought,
    RunState,
)
from durable.link_tokens import hash_of
from durable.models import Child, Entry, Link, OperatorAction, Question, Run
from durable.store.tables import DatabaseTables
from durable.store.tables.rows import LINK, QUESTION

_OVER = [*(each.value for each in ENDED), RunState.ROLLING_BACK.value]


class DatabaseQuestions(DatabaseTables):
    """The part of a `Store` for questions to people."""

    def _ask(self, run_id: str, asked: Sequence[QuestionAsked], now: datetime) -> None:
        """Write the questions of a commit. One that is there already gets what the code says of it now."""
        for each in asked:
            before = self.question(each.question_id)
            record = rules.asked(before, run_id, each, now, self._starters_of(run_id, each))
            if before is not None:
                if before.run_id == run_id:  # an imported history may name the question of any run
                    self.put_question(record)
                continue
            earlier = Question.objects.using(self.alias).filter(
                run_id=run_id, location=each.location, closed_at__isnull=True
            )
            earlier.update(closed_at=now, outcome=rules.REPLACED, next_at=None)
            Question.objects.using(self.alias).bulk_create(
                [Question(**QUESTION.attributes(record))], ignore_conflicts=True
            )

    def _starters_of(self, run_id: str, asked: QuestionAsked) -> list[str]:
        if STARTER not in asked.spec["not_by"]:
            return []

        def origin_of(run_id: str) -> tuple[list[str], str | None]:
            run = Run.objects.using(self.alias).filter(id=run_id).values("created_at", "replay_of_id").first()
            if run is None:
                return [], None
            original = run["replay_of_id"]
            # an earlier run may have had the id
            done = OperatorAction.objects.using(self.alias).filter(
                outcome=ActionOutcome.DONE.value, created_at__gte=run["created_at"]
            )
            rows = done.order_by("created_at", "id").values_list("actor_key", "before", "detail")
            if original is None:
                starts = rows.filter(run_id=run_id, action="start")
                by = [key for key, before, detail in starts if rules.has_given_input(before, detail)]
            else:
                again = rows.filter(run_id=original, action__in=rules.BEGINNING_AGAIN)
                by = [key for key, _before, detail in again if rules.has_begun(run_id, detail)][:1]
            parent = Child.objects.using(self.alias).filter(run_id=run_id).values_list("parent_id", flat=True).first()
            return by, parent or original

        return rules.starters_of(run_id, origin_of)

    def _close_asked(self, run_id: str, closed: Sequence[QuestionClosed], now: datetime) -> None:
        """Let these questions accept nothing any more."""
        ids = [each.question_id for each in closed]
        rows = Question.objects.using(self.alias).filter(run_id=run_id, question_id__in=ids)
        rows.filter(closed_at__isnull=True).update(closed_at=now, outcome=rules.CLOSED, next_at=None)

    def question(self, question_id: str) -> QuestionRecord | None:
        row = Question.objects.using(self.alias).filter(question_id=question_id).values(*QUESTION.names).first()
        return None if row is None else QuestionRecord(**row)

    def questions(self, run_ids: Sequence[str]) -> list[QuestionRecord]:
        rows = Question.objects.using(self.alias).filter(run_id__in=list(run_ids)).order_by("asked_at", "pk")
        return [QuestionRecord(**row) for row in rows.values(*QUESTION.names)]

    def open_questions(self, sought: QuestionsSought, most: int) -> list[QuestionRecord]:
        anybody, mine = Q(assignee=""), Q(assignee__in=sorted(sought.keys))
        if sought.permissions is not None:
            held = sorted(sought.permissions)
            anybody &= Q(permission__in=["", *held] if sought.operates else held)
            mine &= Q(permission__in=["", *held])
        rows = Question.objects.using(self.alias).filter(anybody | mine, closed_at__isnull=True)
        rows = rows.filter(Q(expires_at__isnull=True) | Q(expires_at__gt=sought.now), claimed__in=["", sought.key])
        for each in rules.bars(sought):  # not LIKE, which ignores case on SQLite
            rows = rows.filter(Exact(StrIndex("barred", Value(each)), 0))
        if sought.after is not None:
            moment, question_id = sought.after
            rows = rows.filter(Q(asked_at__gt=moment) | Q(asked_at=moment, question_id__gt=question_id))
        rows = rows.order_by("asked_at", "question_id")
        return [QuestionRecord(**row) for row in rows.values(*QUESTION.names)[:most]]

    def awaited_questions(self, records: Sequence[QuestionRecord]) -> set[str]:
        wanted = {(each.run_id, each.location): each.question_id for each in records}
        entries = (
            Entry.objects.using(self.alias)
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

    def put_question(self, record: QuestionRecord) -> None:
        values = QUESTION.attributes(record)
        Question.objects.using(self.alias).filter(question_id=values.pop("question_id")).update(**values)

    def due_questions(self, now: datetime, most: int) -> list[QuestionRecord]:
        rows = Question.objects.using(self.alias).filter(
            closed_at__isnull=True, next_at__isnull=False, next_at__lte=now
        )
        return [QuestionRecord(**row) for row in rows.order_by("next_at").values(*QUESTION.names)[:most]]

    def close_questions(self, now: datetime, most: int) -> int:
        over = Question.objects.using(self.alias).filter(
            closed_at__isnull=True, run__state__in=[each.value for each in ENDED]
        )
        ids = list(over.values_list("pk", flat=True)[:most])
        rows = Question.objects.using(self.alias).filter(pk__in=ids, closed_at__isnull=True)
        return rows.update(closed_at=now, outcome=rules.ENDED, next_at=None) if ids else 0

    def _open_questions_again(self, run_id: str) -> None:
        """Reopen the questions that the end of the run has closed, because the run continues."""
        rows = Question.objects.using(self.alias).filter(run_id=run_id, outcome=rules.ENDED)
        for row in rows.values(*QUESTION.names):
            self.put_question(rules.opened_again(QuestionRecord(**row)))


class DatabaseLinks(DatabaseTables):
    """The part of a `Store` for links."""

    def _open_links(self, run_id: str, opened: Sequence[LinkOpened], now: datetime) -> None:
        """Write new links of a run. One that is there already was written by an earlier try of the commit."""
        rows = Link.objects.using(self.alias)
        for each in opened:
            rows.bulk_create(
                [
                    Link(
                        token_hash=hash_of(each.token),
                        run_id=run_id,
                        link_id=each.link_id,
                        location=each.location,
                        queue=each.queue,
                        generation=rows.filter(run_id=run_id, location=each.location).count(),
                        verify=each.verify,
                        opened_at=now,
                        expires_at=each.expires_at,
                    )
                ],
                ignore_conflicts=True,
            )

    def _close_links(self, run_id: str, closed: Sequence[LinkClosed], now: datetime) -> None:
        """Let these links accept nothing any more."""
        rows = Link.objects.using(self.alias).filter(run_id=run_id, link_id__in=[each.link_id for each in closed])
        rows.filter(closed_at__isnull=True).update(closed_at=now)

    def link(self, token_hash: str) -> LinkRecord | None:
        row = Link.objects.using(self.alias).filter(token_hash=token_hash).values(*LINK.names).first()
        return None if row is None else LinkRecord(**row)

    def links(self, run_id: str) -> list[LinkRecord]:
        rows = Link.objects.using(self.alias).filter(run_id=run_id).order_by("opened_at", "pk").values(*LINK.names)
        return [LinkRecord(**row) for row in rows]

    def is_link_open(self, link: LinkRecord) -> bool:
        found = Entry.objects.using(self.alias).filter(
            run_id=link.run_id, location=link.location, kind=EntryKind.LINK.value
        )
        entry = found.only("data").first()
        return entry is not None and entry.data.get("id") == link.link_id

    def use_link(self, link: LinkRecord, message_id: str, now: datetime) -> None:
        Link.objects.using(self.alias).filter(token_hash=link.token_hash).update(used_at=now, message_id=message_id)
