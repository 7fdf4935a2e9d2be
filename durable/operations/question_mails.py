"""Mails about questions, and their escalation: sent by the process of the sweep, about once in half a minute.

A mail is noted before it is sent, in a transaction that one process wins. So a reminder is sent once, and a process
that dies between the two sends none of it. If no mail of a reminder could be sent, it is tried again after five
minutes.
Passes send nothing: a replay cannot repeat a mail.

Each mail has a link of its own, which is for its receiver and this question alone. Whoever has the link answers as that
receiver, without a login. Its token is derived with `SECRET_KEY` from random bits of the question.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import EmailMessage
from django.template.loader import render_to_string
from django.urls import NoReverseMatch, reverse
from django.utils.crypto import constant_time_compare

from durable import link_tokens, marks, runtime
from durable.core import question_rules as rules
from durable.core.question_rules import details_of, with_details
from durable.core.records import QuestionRecord, RunChange
from durable.operations.asked_forms import about_in_words
from durable.operations.people import Question, mail_of, person_of, why_closed, why_not
from durable.runtime import Runtime

logger = logging.getLogger("durable.operations")

#: The name of the URL of a question's page, in `durable.hooks.urls`.
URL_NAME: Final = "durable-question"
_AT_ONCE: Final = 100  # questions in one turn
_MOST_MAILS: Final = 50  # of one reminder
_AGAIN: Final = timedelta(minutes=5)


class Receiver(NamedTuple):
    """Who gets a mail: an address, and the key of the person who answers by its link."""

    address: str
    key: str


def remind(now: datetime) -> int:
    """Send the mails that are due, escalate, and close the questions of runs that have ended. Return the mails.

    In a database that went back in time nothing is sent until it is decided what follows.
    """
    at = runtime.current()
    sent = 0
    due = at.store.due_questions(now, _AT_ONCE)
    if due and not runtime.is_replaced() and not marks.look().may_claim:
        return 0
    for record in due:
        sent += _attend(at, record.question_id, record.run_id)
    at.store.close_questions(now, 1_000)
    return sent


def _attend(at: Runtime, question_id: str, run_id: str) -> int:
    """Note that the mail of a question is sent, then send it; return how many were."""
    if at.store.get(run_id) is None:
        return 0
    with at.store.transaction():
        run = at.store.change(run_id, lambda run, _entries: RunChange(run={"change_seq": run.change_seq}))
        before = at.store.question(question_id)
        now = at.now()
        if before is None or before.next_at is None or before.next_at > now:
            return 0  # another process was first
        if why_closed(at, before, run):
            at.store.put_question(replace(before, next_at=None))
            return 0
        record, mails = _attended(before, now)
        at.store.put_question(record)
    if not mails:
        return 0
    sent, failed = _send(record)
    if failed and not sent:
        details = details_of(record) | {"mailed": details_of(before)["mailed"]}
        with at.store.transaction():
            if at.store.question(question_id) == record:
                at.store.put_question(with_details(record, details, next_at=now + _AGAIN))
    return sent


def _attended(record: QuestionRecord, now: datetime) -> tuple[QuestionRecord, bool]:
    """Return the question once its due mail is sent or it is escalated, and whether there is a mail."""
    details = details_of(record)
    spec = details["spec"]
    mails = spec["mails"] or spec["remind"] is not None
    changes: dict[str, Any] = {}
    is_late = spec["escalate"] is not None and not details["escalated"]
    if is_late and record.asked_at + timedelta(seconds=spec["escalate"]) <= now:
        label = spec["escalate_label"]
        note = {"by": "", "at": now.isoformat(), "text": f"→ {label}"}
        details |= {"escalated": True, "label": label, "claimed": None, "notes": [*details["notes"], note]}
        changes["assignee"] = spec["escalate_to"]
    if mails:
        details["mailed"] = now.isoformat()
    record = with_details(record, details, **changes)
    return replace(record, next_at=rules.next_due(record)), mails


def _send(record: QuestionRecord) -> tuple[int, int]:
    """Send a mail to each person who may answer; return how many were sent, and how many were not."""
    sent = failed = 0
    about = about_in_words(Question(record))
    for receiver in _receivers(record):
        context = {
            "question": Question(record),
            "about": about,
            "url": address_of(record, receiver.key),
            "expires_at": record.expires_at,
        }
        try:
            subject = render_to_string("durable/people/mail_subject.txt", context)
            body = render_to_string("durable/people/mail.txt", context)
            EmailMessage(" ".join(subject.split()), body, to=[receiver.address]).send()
            sent += 1
        except Exception:  # whatever the project's backend or its templates raise
            failed += 1
            logger.exception(
                'run %s: a mail about the question "%s" could not be sent',
                record.run_id,
                record.location,
                extra={"run_id": record.run_id, "location": record.location},
            )
    return sent, failed


def _receivers(record: QuestionRecord) -> Iterator[Receiver]:
    """Yield those who may answer and have an address, at most 50."""
    if record.assignee.startswith("mail:"):
        yield Receiver(record.assignee.removeprefix("mail:"), record.assignee)
        return
    number = 0
    for user in _candidates(record):
        person = person_of(user, record)
        address = mail_of(user)
        if address and not why_not(record, person):
            yield Receiver(address, person.key)
            if (number := number + 1) >= _MOST_MAILS:
                return


def _candidates(record: QuestionRecord) -> Iterator[Any]:
    """Yield the first users of whom most may answer."""
    manager: Any = get_user_model()._default_manager
    # a model may have no such column: then all of its users are active
    active = {"is_active": True} if _has_field("is_active") else {}
    users = manager.filter(**active).order_by("pk")
    kind, _, name = record.assignee.partition(":")
    found: Any
    if kind == "user":
        found = users.filter(pk=name)
    elif kind == "username":
        found = users.filter(**{users.model.USERNAME_FIELD: name})
    elif kind in ("group", "groupname"):
        if not _has_field("groups"):
            return
        found = users.filter(**{"groups__pk" if kind == "group" else "groups__name": name})
    else:
        if not record.permission or not hasattr(manager, "with_perm"):
            return
        found = manager.with_perm(
            record.permission,
            is_active=active.get("is_active"),
            include_superusers=False,
            backend="django.contrib.auth.backends.ModelBackend",
        )
    yield from found[: _MOST_MAILS * 4]


def _has_field(name: str) -> bool:
    return any(each.name == name for each in get_user_model()._meta.get_fields())


# -- the links of mails


def address_of(record: QuestionRecord, key: str) -> str:
    """Return the address at which a person answers without a login; "" where the project has none."""
    base = link_tokens.base_url()
    if not base and not runtime.is_replaced():
        return ""
    try:
        path = reverse(URL_NAME, args=[record.question_id, _word_of(key), token_of(record, key)])
    except NoReverseMatch:
        return ""
    return f"{base or 'https://testserver'}{path}"


def token_of(record: QuestionRecord, key: str, secret: Any = None) -> str:
    """Return the token with which this person answers this question."""
    value = f"people\0{record.run_id}\0{record.question_id}\0{record.nonce}\0{key}"
    return link_tokens.derived(secret or settings.SECRET_KEY, value)


def person_of_link(record: QuestionRecord, word: str, token: str) -> str | Any | None:
    """Return the user or the mail address to whom the mail with this link was sent; None for a link that was guessed.

    A user who was deleted is None too.
    """
    key = record.assignee if word == "m" else f"user:{word.removeprefix('u')}" if word.startswith("u") else ""
    if not key.startswith(("mail:", "user:")):
        return None
    secrets = (settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS)
    # all are compared, so that the time of the answer says nothing about the key
    is_right = [constant_time_compare(token_of(record, key, secret), token) for secret in secrets]
    if not any(is_right):
        return None
    if key.startswith("mail:"):
        return key.removeprefix("mail:")
    return get_user_model()._base_manager.filter(pk=key.removeprefix("user:")).first()


def _word_of(key: str) -> str:
    return "m" if key.startswith("mail:") else f"u{key.removeprefix('user:')}"
