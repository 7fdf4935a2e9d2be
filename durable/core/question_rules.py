"""The row of a question: what its `details` are, what a commit makes of it, and when its next mail is due.

Both kinds of stores and the verbs of people use these rules. Must not decide who may answer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final

from durable.core.records import QuestionAsked, QuestionRecord

#: Outcomes of a question that is not open.
ANSWERED: Final = "answered"
REFUSED: Final = "refused"
CLOSED: Final = "closed"  # nobody has answered in time
REPLACED: Final = "replaced"  # a replay has asked anew
ENDED: Final = "ended"  # its run has ended


def details_of(record: QuestionRecord) -> dict[str, Any]:
    """Return the details of a question.

    "spec" is what the code says, "label" names whom it is for, "answers" are those that are there ("text" is codec
    text), "notes" what people wrote and handed over, "claimed" is whoever has taken it. "mailed" is when mails were
    sent, "escalated" whether it was.
    """
    found: dict[str, Any] = json.loads(record.details)
    return found


def with_details(record: QuestionRecord, details: Mapping[str, Any], **changes: Any) -> QuestionRecord:
    """Return the question with other details."""
    return replace(record, details=json.dumps(details), **changes)


def asked(before: QuestionRecord | None, run_id: str, change: QuestionAsked, now: datetime) -> QuestionRecord:
    """Return the row of a question that a commit has asked, or whose code says something else of it now."""
    spec = change.spec
    if before is None:
        details = {
            "spec": spec,
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
            details=json.dumps(details),
        )
        return replace(record, next_at=next_due(record))
    details = details_of(before)
    was, details["spec"] = details["spec"], spec
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
