"""The row of a question: what its `details` are, what a commit makes of it, and when its next mail is due.

Both kinds of stores and the verbs of people use these rules. `durable.operations.people` decides who may answer; the
query of an inbox decides most of it by columns, which follow from the details (`with_details`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from durable.core.new_runs import NEWER_INPUT
from durable.core.people import STARTER
from durable.core.records import QuestionAsked, QuestionRecord, QuestionsSought

#: Outcomes of a question that is not open.
ANSWERED: Final = "answered"
REFUSED: Final = "refused"
CLOSED: Final = "closed"  # nobody has answered in time
REPLACED: Final = "replaced"  # a replay has asked anew
ENDED: Final = "ended"  # its run has ended

#: The actions by which a run is begun again as another one; their rows in the audit log name the first one.
BEGINNING_AGAIN: Final = ("restart", "edit_input", "replay", "give_output")


def details_of(record: QuestionRecord) -> dict[str, Any]:
    """Return the details of a question.

    "spec" is what the code says, "starter" the keys of those who started the run, none if nobody is recorded or nothing
    depends on it; an older row has one key as text. "label" names whom it is for, "answers" are those that are there
    ("text" is codec text), "notes" what people wrote and handed over, "claimed" is whoever has taken it. "mailed" is
    when mails were sent, "escalated" whether it was.
    """
    found: dict[str, Any] = json.loads(record.details)
    return found


def with_details(record: QuestionRecord, details: Mapping[str, Any], **changes: Any) -> QuestionRecord:
    """Return the question with other details, and the columns that follow from these."""
    claimed = details["claimed"]
    return replace(
        record,
        details=json.dumps(details),
        barred="".join(map(bar, barred_keys(details))),
        claimed="" if claimed is None else claimed["key"],
        **changes,
    )


def barred_keys(details: Mapping[str, Any]) -> list[str]:
    """Return the keys of those who may not answer: whom the code excludes, and who has answered already.

    `STARTER` is among them where the code excludes the starter and nobody is recorded as that: nobody may answer then.
    """
    starter = details.get("starter") or STARTER
    starters = [starter] if isinstance(starter, str) else starter
    excluded = [key for each in details["spec"]["not_by"] for key in (starters if each == STARTER else [each])]
    return [*excluded, *(each["key"] for each in details["answers"])]


def bar(key: str) -> str:
    """Return how a key stands in the column `barred`. No part of another key looks like it: quotes are escaped."""
    return f" {json.dumps(key)} "


def bars(sought: QuestionsSought) -> list[str]:
    """Return the texts of which `barred` has none if this person may answer. No group is barred."""
    return [bar(each) for each in (STARTER, *sought.keys) if not each.startswith("group")]


def is_sought(record: QuestionRecord, sought: QuestionsSought) -> bool:
    """Return whether the person may answer an open question, as far as its row says: the rule of the inbox's query."""
    if sought.after is not None and (record.asked_at, record.question_id) <= sought.after:
        return False
    if record.expires_at is not None and record.expires_at <= sought.now:
        return False
    if record.claimed not in ("", sought.key) or any(each in record.barred for each in bars(sought)):
        return False
    if record.assignee and record.assignee not in sought.keys:
        return False
    if not record.permission:
        return bool(record.assignee) or sought.operates
    return sought.permissions is None or record.permission in sought.permissions


def starters_of(run_id: str, origin_of: Callable[[str], tuple[list[str], str | None]]) -> list[str]:
    """Return the keys of the users who started a run and the runs that it comes from; [] if nobody is recorded.

    `origin_of` returns who started a run, and the run whose child, restart or replay it is. Several people have started
    it whose starts a debounce has merged, the last of whom has given its input. Whoever has restarted a run has started
    the new one, and is no stand-in for an unknown starter of the first one.
    """
    keys: dict[str, None] = {}
    seen: set[str] = set()
    by: list[str] = []
    origin: str | None = run_id
    while origin is not None and origin not in seen:
        seen.add(origin)
        by, origin = origin_of(origin)
        keys |= dict.fromkeys(filter(None, by))
    return list(keys) if by and by[-1] else []


def has_given_input(before: str, detail: str) -> bool:
    """Return whether a start, of which the audit log has this, has made its run, or has given it another input."""
    return not before or detail.endswith(NEWER_INPUT)  # a start that finds the run has a state before


def has_begun(run_id: str, detail: str) -> bool:
    """Return whether the detail of one of the actions `BEGINNING_AGAIN` says that it has made the run with this id."""
    named = re.search(rf"as run {re.escape(run_id)}(?:$|[,;])", detail)
    return named is not None and not detail.endswith("was there already")


def asked(
    before: QuestionRecord | None, run_id: str, change: QuestionAsked, now: datetime, starters: Sequence[str]
) -> QuestionRecord:
    """Return the row of a question that a commit has asked, or whose code says something else of it now.

    `starters` are the keys of those who started the run, if the code excludes these people, and they are known.
    """
    spec = change.spec
    if before is None:
        details = {
            "spec": spec,
            "starter": starters,
            "label": spec["to_label"],
            "answers": [],
            "notes": [],
            "claimed": None,
            "mailed": None,
            "escalated": False,
        }
        record = QuestionRecord(
            question_id=change.question_id,
            run_id=run_id,
            location=change.location,
            queue=change.queue,
            form=spec["form"] or "",
            permission=spec["permission"],
            assignee=spec["to"],
            about=spec["about"],
            nonce=change.nonce,
            asked_at=now,
            expires_at=change.expires_at,
        )
        record = with_details(record, details)
        return replace(record, next_at=next_due(record))
    details = details_of(before)
    was, details["spec"], details["starter"] = details["spec"], spec, starters
    changes: dict[str, Any] = {"form": spec["form"] or "", "permission": spec["permission"], "about": spec["about"]}
    if spec["to"] != was["to"]:  # a hand-over stays if the code says what it said
        changes["assignee"], details["label"] = spec["to"], spec["to_label"]
    record = with_details(before, details, **changes)
    return replace(record, next_at=next_due(record) if record.closed_at is None else None)


def next_due(record: QuestionRecord) -> datetime | None:
    """Return when the next mail or the escalation of an open question is due; None for never."""
    details = details_of(record)
    spec, mailed = details["spec"], details["mailed"]
    last = None if mailed is None else datetime.fromisoformat(mailed)
    moments = []
    if spec["mails"] and last is None:
        moments.append(record.asked_at)
    if spec["remind"] is not None:
        moments.append((last or record.asked_at) + timedelta(seconds=spec["remind"]))
    if spec["escalate"] is not None and not details["escalated"]:
        moments.append(record.asked_at + timedelta(seconds=spec["escalate"]))
    due = min(moments, default=None)
    return None if due is None or (record.expires_at is not None and due >= record.expires_at) else due


def closed(record: QuestionRecord, outcome: str, now: datetime) -> QuestionRecord:
    """Return the question after which nothing is accepted; one that is closed stays as it is."""
    return record if record.closed_at is not None else replace(record, closed_at=now, outcome=outcome, next_at=None)


def opened_again(record: QuestionRecord) -> QuestionRecord:
    """Return a question that was closed because its run had ended, which goes on."""
    record = replace(record, closed_at=None, outcome="")
    return replace(record, next_at=next_due(record))
