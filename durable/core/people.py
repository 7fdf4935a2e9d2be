"""Questions to people: what a run asks, and the wait for the answer.

Owns their records. A question is the entry of a wait for one message, in a queue that belongs to that question alone.
The entry's data has the question under "ask"; the side table has what people look for, and what they have said so far.
The message is the verdict: it is sent when the question is decided, in the transaction of the answer that decides it.

Who may answer is a text, a key: "user:7", "group:3", "username:anna", "groupname:managers" or "mail:a@b.example". Must
not ask Django anything: users, groups and forms are known here by their attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from durable.core.duration import Duration, parse_duration
from durable.core.effects import Operation
from durable.core.errors import PersonTimeoutError
from durable.core.location import QUESTION_QUEUES, escape
from durable.core.messages import Wait, body_of, receive_one
from durable.core.names.recorded_names import recorded_name, resolve_name
from durable.core.numbers import check_whole
from durable.core.options import importable_name
from durable.core.records import EntryRecord, QuestionAsked, QuestionClosed
from durable.core.results import PersonAnswer, Verdict
from durable.core.scope import Scope
from durable.core.summary import Doing, asking_person

#: As `not_by`: the person who started the run.
STARTER: Final = "starter"
#: The key in the data of a wait that has the question.
ASK: Final = "ask"
_MOST_NAME: Final = 80  # characters of a question's name in its queue
_MOST_TEXT: Final = 2_000
_MOST_KEY: Final = 300
_MOST_PERMISSION: Final = 255
#: How the queue of a question stands in a run's `waiting_for`.
QUEUES: Final = f"/{escape(QUESTION_QUEUES)}"


def queue_of(question_id: str, name: str) -> str:
    """Return the queue of the verdict about a question."""
    return f"{QUESTION_QUEUES}{question_id}:{name[:_MOST_NAME]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the code says of a question, as plain data: the `AskedOfPeople` of a wait."""

    form: str | None
    permission: str
    to: str
    to_label: str
    about: str
    not_by: tuple[str, ...]
    approvals: int
    text: str
    remind: float | None
    escalate: float | None
    escalate_to: str
    escalate_label: str
    mails: bool

    def note(self, scope: Scope, name: str, entry: EntryRecord, expires_at: datetime | None) -> None:
        spec = {field: getattr(self, field) for field in self.__slots__}
        spec["not_by"] = list(self.not_by)
        before = entry.data.get(ASK, {})
        is_own = before.get("run") == scope.journal.run.id
        if is_own and before["spec"] == spec:
            return
        new = scope.environment.new_link()  # the row alone has the nonce, and keeps it
        if is_own:  # its queue stays, whatever the code calls it now
            ask, [queue] = {**before, "spec": spec}, entry.data["names"]
        else:  # new, or a copy in another run, or imported
            ask = {"id": new["id"], "run": new["run"], "spec": spec}
            queue = queue_of(ask["id"], name)
        scope.journal.update(entry, data={**entry.data, "names": [queue], ASK: ask})
        scope.journal.add(
            QuestionAsked(
                question_id=ask["id"],
                location=entry.location,
                queue=queue,
                nonce=new["nonce"],
                spec=spec,
                expires_at=expires_at,
            )
        )

    def closed(self, entry: EntryRecord) -> QuestionClosed:
        return QuestionClosed(entry.data[ASK]["id"])

    def waiting(self, entry: EntryRecord) -> Doing:
        return asking_person(entry.location, self.to_label)

    def timeout(self, name: str) -> PersonTimeoutError:
        return PersonTimeoutError(name)


def ask_person(scope: Scope, name: str, asked: Asked, timeout: timedelta | None) -> Operation:
    """Ask, wait, and return the `Verdict`. Raises PersonTimeoutError when `timeout` has passed, or ASK_TIMEOUT."""
    limit = timedelta(seconds=scope.environment.ask_timeout) if timeout is None else timeout
    wait = Wait(name=name, timeout=limit, asks=asked)
    received = yield from receive_one(scope, wait)
    return verdict_of(body_of(scope, wait, received))


def verdict_of(body: Mapping[str, Any]) -> Verdict:
    """Return the verdict that the message about a question has."""
    answers = tuple(PersonAnswer(**each) for each in body["answers"])
    last = answers[-1]
    return Verdict(
        data=last.data,
        by=last.by,
        at=last.at,
        comment=last.comment,
        approved=body["approved"],
        answers=answers,
    )


def asked_of(
    *,
    form: Any,
    permission: str | None,
    to: Any,
    about: Any,
    not_by: Any,
    approvals: int,
    text: str,
    remind: Duration | None,
    escalate: tuple[Duration, Any] | None,
    mail: bool | None,
) -> Asked:
    """Return what the code says of a question. Raises TypeError and ValueError for what no question can have."""
    check_whole("approvals", approvals, 1, 20)
    if permission is not None and not _is_permission(permission):
        raise ValueError(f'permission is the name of one, such as "shop.approve_refund", not {permission!r:.100}')
    if not isinstance(text, str) or len(text) > _MOST_TEXT:
        raise ValueError(f"text is what the people are asked, at most {_MOST_TEXT:,} characters, not {text!r:.100}")
    key, label = assignee_of(to)
    after: float | None = None
    then, then_label = "", ""
    if escalate is not None:
        if not isinstance(escalate, tuple | list) or len(escalate) != 2:
            raise TypeError(
                f'escalate is a duration and whom to ask then, such as ("3 days", boss), not {escalate!r:.100}'
            )
        after = parse_duration(escalate[0]).total_seconds()
        then, then_label = assignee_of(escalate[1])
        if not then:
            raise ValueError('escalate says whom to ask then, such as ("3 days", boss)')
    interval = None if remind is None else parse_duration(remind).total_seconds()
    if interval is not None and interval < 60:
        raise ValueError(f"remind is the time between two mails, at least a minute, not {remind!r}")
    return Asked(
        form=form_name(form),
        permission=permission or "",
        to=key,
        to_label=label,
        about=_subject(about),
        not_by=tuple(dict.fromkeys(_excluded(not_by))),
        approvals=approvals,
        text=text,
        remind=interval,
        escalate=after,
        escalate_to=then,
        escalate_label=then_label,
        mails=bool(mail) if mail is not None else key.startswith("mail:"),
    )


def _is_permission(value: Any) -> bool:
    if not isinstance(value, str) or len(value) > _MOST_PERMISSION:
        return False
    app, dot, name = value.partition(".")
    return bool(app and dot and name) and value.isprintable() and " " not in value


def form_name(form: Any) -> str | None:
    """Return the name, "module:qualname", by which a form is recorded; None for none.

    Raises TypeError for what is neither a form that can be imported nor its name. A name is not imported here: a form
    that is gone must not end a pass.
    """
    if form is None:
        return None
    if isinstance(form, str):
        return recorded_name(form)
    name = importable_name(form) if isinstance(form, type) else None
    if name is None:
        raise TypeError(
            f"form is a class of Django's forms at the top level of a module, or its name, {form!r:.100} is not: it is "
            'recorded by name, so that the process that shows it can import it. Write form="shop.forms.RefundForm"'
        )
    return name


def imported_form(name: str) -> Any:
    """Return the form with this name. Raises ImportError or AttributeError if it is gone."""
    return resolve_name(name)


# -- people and things, by their attributes


def key_of_user(user: Any) -> str:
    """Return the key of a user. Raises TypeError for anything else, ValueError for one without a primary key."""
    if not hasattr(user, "get_username"):
        raise TypeError(f"a person is a user of Django, not {user!r:.100}")
    if getattr(user, "pk", None) is None:
        raise ValueError(f"{user!r:.100} has no primary key: a person is a user with a row")
    return f"user:{user.pk}"[:_MOST_KEY]


def assignee_of(to: Any) -> tuple[str, str]:
    """Return the key of whom a question is for and their name; "" for whoever has the permission."""
    if to is None:
        return "", ""
    if hasattr(to, "get_username"):
        return key_of_user(to), str(to.get_username())[:200]
    if hasattr(to, "permissions") and hasattr(to, "name"):
        if to.pk is None:
            raise ValueError(f"the group {to!r:.100} is not saved, so nobody is in it: save it first")
        return f"group:{to.pk}"[:_MOST_KEY], str(to.name)[:200]
    if isinstance(to, str) and len(to) < _MOST_KEY - 20:
        kind, colon, name = to.partition(":")
        if colon and name and kind in ("user", "group"):
            return f"{kind}name:{name}", name[:200]
        if "@" in to.strip("@") and to.isprintable() and " " not in to and not colon:
            return f"mail:{to}", to[:200]
    raise TypeError(
        'to is a user, a group, "user:NAME", "group:NAME", or the mail address of somebody without an account, not '
        f"{to!r:.100}"
    )


def _named(text: str) -> list[str]:
    """Return the keys of users whose name or primary key is this text: JSON has a key of UUIDs as text."""
    keys = {text: None}  # a key may be text itself, such as the digits of a UUID
    with suppress(ValueError):
        keys[str(UUID(text))] = None
    return [f"username:{text}", *(f"user:{key}" for key in keys)]


def _excluded(not_by: Any) -> Iterable[str]:
    """Return the keys of those who may not answer."""
    if not_by is None:
        return []
    if isinstance(not_by, Verdict):
        return [each.key for each in not_by.answers]
    if isinstance(not_by, PersonAnswer):
        return [not_by.key]
    if hasattr(not_by, "get_username"):
        return [key_of_user(not_by)]
    if isinstance(not_by, int | UUID) and not isinstance(not_by, bool):
        return [f"user:{not_by}"]
    if isinstance(not_by, str) and 0 < len(not_by) < _MOST_KEY - 20:
        return [STARTER] if not_by == STARTER else _named(not_by.removeprefix("user:"))
    if isinstance(not_by, Iterable) and not isinstance(not_by, str | bytes | Mapping):
        return [key for each in not_by for key in _excluded(each)]
    raise TypeError(
        'not_by is a user, the primary key or the name of one, "starter", an earlier verdict, or a list of these, not '
        f"{not_by!r:.100}"
    )


def _subject(about: Any) -> str:
    """Return what a question is about as text, "shop.order:42"; "" for nothing."""
    if about is None:
        return ""
    if isinstance(about, str):
        label, colon, key = about.partition(":")
        if not (colon and key and label.count(".") == 1) or len(about) > 1_000:
            raise ValueError(
                f'about is a saved instance of a model, or a text such as "shop.order:42", not {about!r:.100}'
            )
        return f"{label.lower()}:{key}"
    meta = getattr(about, "_meta", None)
    if meta is None or isinstance(about, type):
        raise TypeError(f"about is a saved instance of a model, not {about!r:.100}")
    if about.pk is None:
        raise ValueError(f"this {meta.object_name} is not saved, so nothing can be shown of it: save it first")
    return f"{(meta.concrete_model or type(about))._meta.label_lower}:{about.pk}"[:1_000]
