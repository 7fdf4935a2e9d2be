"""Questions to people: which are open for whom, who may answer, and what an answer does.

An answer is decided under the lock of the run's row: whether the question is open, who the person is, and whether that
is one more approval or the verdict. So of two answers at once one wins. The verdict is a message to the run, sent in
the same transaction; an approval before it is kept with the question. Each verb is in the audit log, refusals included.

The form is the code's at hand: it is imported by its name whenever somebody answers, and nothing of it is recorded.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from django.contrib.auth import get_user_model
from django.core.exceptions import ValidationError
from django.core.files.base import File
from django.db import Error
from django.db.models import Model, QuerySet

from durable import runtime
from durable.core import question_rules as rules
from durable.core.errors import (
    EntryNotFoundError,
    FormInvalidError,
    NotAllowedError,
    PayloadError,
    QuestionClosedError,
)
from durable.core.ids import new_id
from durable.core.location import check_location, display_location, unescape
from durable.core.names.recorded_names import resolve_name
from durable.core.people import STARTER, assignee_of, key_of_user, verdict_of
from durable.core.places import of_message
from durable.core.question_rules import details_of, with_details
from durable.core.records import ENDED, OutgoingMessage, QuestionRecord, QuestionsSought, RunRecord
from durable.core.results import PersonAnswer, Verdict
from durable.core.rewind.replay import nearest
from durable.core.words import Sentence, gettext_noop
from durable.operations import audit
from durable.operations.audit import Actor, Attribution, acting_as, audited
from durable.operations.common import in_async, require_step
from durable.runtime import Runtime

if TYPE_CHECKING:
    from django.forms import BaseForm

logger = logging.getLogger("durable.operations")

#: What a user needs who answers a question that says neither whom it is for nor which permission it needs; also what
#: a user needs who hands over a question that is not for them.
OPERATE: Final = "durable.operate_run"
#: Most open questions that one call returns.
MOST: Final = 500
_ID: Final = re.compile(r"[0-9a-f]{1,32}")
_MOST_COMMENT: Final = 10_000
_MOST_NOTES: Final = 100
#: Fields whose value False, "no" or "refuse" is a refusal, where the form has no method `refuses`.
_VERDICTS: Final = ("approved", "approve", "verdict", "decision")
_NO: Final = frozenset({"false", "no", "n", "0", "refuse", "refused", "reject", "rejected", "deny", "denied"})
_YES: Final = frozenset({"true", "yes", "y", "1", "approve", "approved", "accept", "accepted", "ok"})

_NOT_FOUND: Final = gettext_noop("there is no such question")
_ANSWERED: Final = gettext_noop("it was answered")
_OVER: Final = gettext_noop("its time is over")
_GONE: Final = gettext_noop("the run has gone on without it")
_RUN_ENDED: Final = gettext_noop("its run has ended")
_NO_USER: Final = gettext_noop("the user does not exist any more")
_INACTIVE: Final = gettext_noop("the user is not active")
_NO_PERSON: Final = gettext_noop("a question is answered by a user of this project")
_NOT_FOR: Final = gettext_noop("it is for {assignee}")
_NEEDS: Final = gettext_noop("that needs the permission {permission}")
_EXCLUDED: Final = gettext_noop("four eyes are asked for, and this person is one of those who may not answer")
_NO_STARTER: Final = gettext_noop(
    "the person who started the run may not answer, and nobody is recorded as that person; name the user in not_by="
)
_TWICE: Final = gettext_noop("the same person has answered already, and another one has to")
_CLAIMED: Final = gettext_noop("{who} has claimed it")


class Person(NamedTuple):
    """Who answers: a user, or the owner of a mail address, who answers by its link.

    `keys` are the keys under which the person may be asked. `user` is the row as the database has it now. `address` is
    the mail address in lower case, "" for none: a user and the owner of the user's address are the same person.
    """

    key: str
    label: str
    keys: frozenset[str]
    user: Any = None
    problem: str = ""
    address: str = ""

    def has_perm(self, permission: str) -> bool:
        """Return whether the person is a user with this permission."""
        return self.user is not None and bool(self.user.has_perm(permission))


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a run, as it was when it was read (`durable.people`)."""

    _record: QuestionRecord

    # -- what it says

    @property
    def id(self) -> str:
        """The id of the question, which another question of the same place does not have."""
        return self._record.question_id

    @property
    def run_id(self) -> str:
        """The id of the run that asks."""
        return self._record.run_id

    @property
    def location(self) -> str:
        """The place of the question in the run's history."""
        return self._record.location

    @property
    def name(self) -> str:
        """The name that the code gives it."""
        return unescape(self._record.location.rpartition("/")[2])

    @property
    def text(self) -> str:
        """What the code says beside the name; "" for nothing."""
        return str(self._spec["text"])

    @property
    def form_class(self) -> type[BaseForm] | None:
        """The form, as the code at hand has it; None for a question of yes or no.

        Raises FormInvalidError if there is no such form any more.
        """
        return form_of(self._record)

    @property
    def has_form(self) -> bool:
        """Whether it is answered by a form; else by yes or no."""
        return bool(self._record.form)

    @property
    def about(self) -> str:
        """What it is about, "shop.order:42"; "" for nothing."""
        return self._record.about

    @property
    def permission(self) -> str:
        """The permission that an answer needs, "shop.approve_refund"; "" for none."""
        return self._record.permission

    @property
    def to(self) -> str:
        """The name of the user or group it is for, or the mail address; "" for whoever has the permission."""
        return str(self._details["label"])

    @property
    def is_for_operators(self) -> bool:
        """Whether it says neither whom it is for nor which permission it needs."""
        return not (self._record.assignee or self._record.permission)

    @property
    def approvals(self) -> int:
        """How many people have to agree."""
        return int(self._spec["approvals"])

    @property
    def asked_at(self) -> datetime:
        """When the run asked."""
        return self._record.asked_at

    @property
    def expires_at(self) -> datetime | None:
        """When the time for an answer is over."""
        return self._record.expires_at

    # -- what people have done

    @property
    def answers(self) -> tuple[PersonAnswer, ...]:
        """The approvals so far, of a question that needs several."""
        return tuple(_earlier(runtime.current(), self._record))

    @property
    def answered_by(self) -> tuple[str, ...]:
        """The names of those who have answered so far."""
        return tuple(each["by"] for each in self._details["answers"])

    @property
    def notes(self) -> list[dict[str, str]]:
        """Comments and hand-overs, oldest first: "by", "at" and "text"."""
        return list(self._details["notes"])

    @property
    def claimed_by(self) -> str:
        """The name of the person who has taken it; "" for nobody."""
        claimed = self._details["claimed"]
        return "" if claimed is None else str(claimed["by"])

    @property
    def outcome(self) -> str:
        """Why it is not open: "answered", "refused", "closed", "replaced" or "ended"; "" if nothing has closed it."""
        return self._record.outcome

    @property
    def is_open(self) -> bool:
        """Whether an answer would be accepted now."""
        at = runtime.current()
        return why_closed(at, self._record, at.store.get(self.run_id)) == ""

    def is_for(self, user: Any) -> bool:
        """Return whether this user may answer it."""
        person = person_of(user, self._record)
        return not why_not(self._record, person)

    @property
    def _details(self) -> dict[str, Any]:
        return details_of(self._record)

    @property
    def _spec(self) -> dict[str, Any]:
        return dict(self._details["spec"])

    # -- verbs

    def answer(self, data: Any = None, *, by: Any, comment: str = "") -> Verdict | None:
        """Answer it as the user `by`. `data` is what the form is given, or True or False for yes or no.

        Returns the verdict, or None if more people have to agree. Raises NotAllowedError, FormInvalidError with
        `errors`, after which it can be answered again, and QuestionClosedError.
        """
        return answer(self.id, data, by=by, comment=comment)

    def hand_over(self, to: Any, *, by: Any, comment: str = "") -> None:
        """Ask a user or a group instead: by whoever may answer, or has the permission durable.operate_run.

        Raises NotAllowedError, also for a user who may not answer it, and QuestionClosedError.
        """
        hand_over(self.id, to, by=by, comment=comment)

    def claim(self, *, by: Any) -> None:
        """Take it: nobody else may answer it until it is released or handed over. Raises as `answer`."""
        claim(self.id, by=by)

    def release(self, *, by: Any) -> None:
        """Give back what the user has claimed. Raises as `answer`."""
        claim(self.id, by=by, takes=False)

    def comment(self, text: str, *, by: Any) -> None:
        """Write a comment, which the next reader sees, without an answer. Raises as `answer`."""
        comment_on(self.id, text, by=by)

    # -- twins for async code

    aanswer = in_async(answer)
    ahand_over = in_async(hand_over)
    aclaim = in_async(claim)
    arelease = in_async(release)
    acomment = in_async(comment)


# -- finding questions


def questions_for(user: Any, *, most: int = MOST) -> list[Question]:
    """Return the open questions that this user may answer, the oldest first, at most `most`.

    A question that somebody else has claimed is not among them.
    """
    return page_for(user, most=min(most, MOST))[0]


def page_for(
    user: Any, *, most: int, after: tuple[datetime, str] | None = None
) -> tuple[list[Question], tuple[datetime, str] | None]:
    """Return the next `most` open questions that this user may answer, and where they end; None if there are no more.

    The query decides who may answer, so one page is read as a rule.
    """
    at = runtime.current()
    person = person_of(user, None)
    if person.problem:
        return [], None
    operates = person.has_perm(OPERATE)
    permissions = None if person.user.is_superuser else frozenset(person.user.get_all_permissions())
    sought = QuestionsSought(at.now(), person.key, tuple(person.keys), permissions, operates, after)
    found: list[Question] = []
    while True:
        page = at.store.open_questions(sought, most + 1)
        found += _answerable(at, page, person)
        if len(page) <= most or len(found) > most:
            break
        sought = sought._replace(after=(page[-1].asked_at, page[-1].question_id))
    return found[:most], (found[most - 1].asked_at, found[most - 1].id) if len(found) > most else None


def _answerable(at: Runtime, page: Sequence[QuestionRecord], person: Person) -> list[Question]:
    waiting = at.store.awaited_questions(page) if page else set()
    return [Question(each) for each in page if each.question_id in waiting and not why_not(each, person)]


aquestions_for = in_async(questions_for)


def question(question_id: str) -> Question:
    """Return the question with this id. Raises QuestionClosedError if there is none, or its run was deleted."""
    return Question(_known(runtime.current(), question_id))


def find(question_id: str) -> QuestionRecord | None:
    try:
        return _known(runtime.current(), question_id)
    except QuestionClosedError:
        return None


def questions_of(run_id: str, *, is_open: bool = False) -> list[Question]:
    """Return the questions of a run, the oldest first; with `is_open`, only those that wait for an answer."""
    at = runtime.current()
    found = at.store.questions([run_id])
    if is_open and found:
        run = at.store.get(run_id)
        found = [each for each in found if not why_closed(at, each, run)]
    return [Question(each) for each in found]


def question_at(run_id: str, location: str) -> Question:
    """Return the newest question of the run at a location, or with this name. Raises EntryNotFoundError."""
    check_location(location)
    found = questions_of(run_id)
    for each in reversed(found):
        if location in (each.location, display_location(each.location)):
            return each
    named = [each for each in found if each.name == location]
    if len({each.location for each in named}) == 1:
        return named[-1]
    raise EntryNotFoundError(run_id, location, nearest(location, [each.location for each in found]))


def _known(at: Runtime, question_id: str) -> QuestionRecord:
    found = at.store.question(question_id) if isinstance(question_id, str) and _ID.fullmatch(question_id) else None
    if found is None:
        raise QuestionClosedError(str(question_id)[:64], _NOT_FOUND)
    return found


# -- who may answer


def person_of(by: Any, record: QuestionRecord | None) -> Person:
    """Return who answers. The user's row is read again: an object may be older than what was decided about the user."""
    if isinstance(by, str) and record is not None and record.assignee == f"mail:{by}":
        return Person(record.assignee, by, frozenset({record.assignee}), address=by.lower())
    if not isinstance(by, Model) or not hasattr(by, "get_username"):
        return Person("", str(by)[:200], frozenset(), problem=_NO_PERSON)
    name = str(by.get_username())
    if by.pk is None:
        return Person("", name, frozenset(), problem=_NO_PERSON)
    user = get_user_model()._base_manager.filter(pk=by.pk).first()
    key = key_of_user(by)
    if user is None:
        return Person(key, name, frozenset(), problem=_NO_USER)
    if not user.is_active:
        return Person(key, name, frozenset(), user, problem=_INACTIVE)
    keys = {key, f"username:{user.get_username()}"}
    if hasattr(user, "groups"):
        for pk, group in user.groups.values_list("pk", "name"):
            keys |= {f"group:{pk}", f"groupname:{group}"}
    return Person(key, str(user.get_username()), frozenset(keys), user, address=mail_of(user).lower())


def mail_of(user: Any) -> str:
    """Return the mail address of a user, "" for none."""
    field = user.get_email_field_name() if hasattr(user, "get_email_field_name") else "email"
    return str(getattr(user, field, None) or "")


def _is_key_of(person: Person, key: str) -> bool:
    """Return whether the key is one of this person: also the address of a user, and a user with the address."""
    if key in person.keys:
        return True
    kind, _, name = key.partition(":")
    if kind == "mail" or person.user is not None or not person.address:
        return kind == "mail" and bool(person.address) and name.lower() == person.address
    users: Any = get_user_model()
    field = {"user": "pk", "username": users.USERNAME_FIELD}.get(kind)
    if field is None:
        return False
    try:
        found = users._base_manager.filter(**{field: name}).first()
    except (ValidationError, ValueError, TypeError, OverflowError):  # `not_by` may be a name, and is no key then
        return False
    return found is not None and mail_of(found).lower() == person.address


def why_not(record: QuestionRecord, person: Person) -> str:
    """Return why this person may not answer an open question; "" if they may."""
    if person.problem:
        return person.problem
    details = details_of(record)
    if record.assignee and record.assignee not in person.keys:
        return Sentence(_NOT_FOR, assignee=details["label"])
    permission = record.permission or ("" if record.assignee else OPERATE)
    if permission and not person.has_perm(permission):
        return Sentence(_NEEDS, permission=permission)
    if any(_is_key_of(person, each["key"]) for each in details["answers"]):
        return _TWICE
    barred = rules.barred_keys(details)
    if any(_is_key_of(person, each) for each in barred):
        return _EXCLUDED
    if STARTER in barred:
        return _NO_STARTER
    claimed = details["claimed"]
    if claimed is not None and claimed["key"] != person.key:
        return Sentence(_CLAIMED, who=claimed["by"])
    return ""


def why_closed(at: Runtime, record: QuestionRecord, run: RunRecord | None) -> str:
    """Return why a question accepts no answer; "" if it does."""
    if record.outcome in (rules.ANSWERED, rules.REFUSED):
        return _ANSWERED
    if record.outcome == rules.REPLACED:
        return _GONE
    if run is None or run.state in ENDED or run.state_after_rollback:
        return _RUN_ENDED
    if record.closed_at is not None or (record.expires_at is not None and record.expires_at <= at.now()):
        return _OVER
    return "" if record.question_id in at.store.awaited_questions([record]) else _GONE


# -- the form


def form_of(record: QuestionRecord) -> type[BaseForm] | None:
    """Return the form of a question; None for one of yes or no. Raises FormInvalidError if it is gone or unfit."""
    if not record.form:
        return None
    try:
        found: Any = resolve_name(record.form)
    except Exception as error:  # whatever the import of the project's module raises
        why = f"the form {record.form} cannot be imported: {_logged(record, error)}"
        raise FormInvalidError(_name(record), {"__all__": [why]}) from error
    if not isinstance(found, type) or not hasattr(found, "base_fields"):
        raise FormInvalidError(_name(record), {"__all__": [f"{record.form} is not a form of Django"]})
    if problem := _why_unfit(record, found):
        raise FormInvalidError(_name(record), {"__all__": [f"nobody can answer by {record.form}: {problem[:500]}"]})
    return found


def _why_unfit(record: QuestionRecord, form_class: type[BaseForm]) -> str:
    """Return why no answer can be given by this form; "" if one can."""
    from django.forms import FileField  # for this alone, and django.setup() imports this module

    try:
        fields = form_class().fields
    except Exception as error:  # noqa: BLE001  # whatever the project's constructor raises
        return f"it cannot be made without arguments: {_logged(record, error)}"
    files = [name for name, field in fields.items() if isinstance(field, FileField) and field.required]
    return f'its field "{files[0]}" requires a file, and an answer has none' if files else ""


def _name(record: QuestionRecord) -> str:
    return unescape(record.location.rpartition("/")[2])


def _validated(record: QuestionRecord, data: Any) -> tuple[Any, bool]:
    """Return the data of an answer, and whether it approves. Raises FormInvalidError."""
    form_class = form_of(record)
    if form_class is None:
        verdict = _yes_or_no(data)
        if verdict is None:
            raise FormInvalidError(_name(record), {"verdict": ["The answer is yes or no: True or False."]})
        return verdict, verdict
    if data is None:
        data = {}
    if not isinstance(data, Mapping) and not hasattr(data, "getlist"):
        why = f"The form takes a mapping of its fields, not {type(data).__name__}."
        raise FormInvalidError(_name(record), {"__all__": [why]})
    with using_form(Question(record)):
        form = form_class(data)
        if form.is_valid():
            cleaned = {name: _plain(value) for name, value in form.cleaned_data.items()}
            return cleaned, not _is_refusal(form, cleaned)
    raise FormInvalidError(_name(record), {name: list(map(str, texts)) for name, texts in form.errors.items()})


@contextmanager
def using_form(question: Question) -> Iterator[None]:
    """Log whatever the project's form raises inside, and raise FormInvalidError, which names the form, instead."""
    record = question._record
    try:
        yield
    except (FormInvalidError, Error):  # one of the database says nothing about the form
        raise
    except Exception as error:
        why = f"the form {record.form} has failed: {_logged(record, error)}"
        raise FormInvalidError(_name(record), {"__all__": [why]}) from error


def _logged(record: QuestionRecord, error: Exception) -> str:
    """Log what the form of a question has raised, and return what people may read of it.

    Its text stays in the log: who answers may be anybody who has the link.
    """
    logger.error(
        'run %s: the form %s has failed, by which "%s" is answered',
        record.run_id,
        record.form,
        record.location,
        exc_info=error,
        extra={"run_id": record.run_id, "location": record.location},
    )
    return f"{type(error).__name__}; the log has the traceback"


def _yes_or_no(data: Any) -> bool | None:
    if hasattr(data, "get"):
        data = data.get("verdict")
    if isinstance(data, str):
        word = data.strip().lower()
        return True if word in _YES else False if word in _NO else None
    return data if isinstance(data, bool) else None


def _plain(value: Any) -> Any:
    """Return a cleaned value in a form that can be recorded: a row as its key, rows as the list of theirs."""
    if isinstance(value, Model):
        return value.pk
    if isinstance(value, QuerySet):
        return [each.pk for each in value]
    if isinstance(value, File):
        return value.name
    return str(value) if isinstance(value, str) else value


def _is_refusal(form: Any, cleaned: Mapping[str, Any]) -> bool:
    if hasattr(form, "refuses"):
        return bool(form.refuses())
    for name in _VERDICTS:
        if name in cleaned:
            value = cleaned[name]
            return value is False or (isinstance(value, str) and value.strip().lower() in _NO)
    return False


# -- verbs


def answer(question_id: str, data: Any = None, *, by: Any, comment: str = "") -> Verdict | None:
    """Answer a question; see `Question.answer`."""
    require_step("answering a question", "answer it in a step")
    at = runtime.current()
    known = _known(at, question_id)
    with _attributed(at, "answer", known, by) as (attribution, person):
        _check(at, known, person, at.store.get(known.run_id))
        comment = _checked_text(known, comment)
        cleaned, is_approval = _validated(known, data)
        with at.store.transaction():
            run = attribution.lock()
            record = _known(at, question_id)
            _check(at, record, person, run)
            given = PersonAnswer(data=cleaned, by=person.label, key=person.key, at=at.now(), comment=comment)
            verdict, queues = _decided(at, record, given, is_approval=is_approval)
            told = "approves" if is_approval else "refuses"
            detail = f'question "{display_location(record.location)}": {told}' + ("" if verdict else ", more have to")
            at.store.log([attribution.done(before=run.state, after=run.state, detail=detail)])
    if queues:
        at.notify(queues)
    return verdict


def _decided(
    at: Runtime, record: QuestionRecord, given: PersonAnswer, *, is_approval: bool
) -> tuple[Verdict | None, Any]:
    """Keep an approval of several, or send the verdict; return it, and the queues to notify."""
    details = details_of(record)
    answers = [*_earlier(at, record), given]
    if is_approval and len(answers) < details["spec"]["approvals"]:
        place = of_message(record.run_id, "message", _key_of_answer(record, len(answers) - 1), record.queue)
        text = _encoded(at, record, {"data": given.data, "comment": given.comment}, place)
        kept = {"by": given.by, "key": given.key, "at": given.at.isoformat(), "text": text}
        details["answers"].append(kept)
        details["claimed"] = None
        at.store.put_question(with_details(record, details))
        return None, frozenset()
    body = {
        "approved": is_approval,
        "answers": [
            {"data": each.data, "by": each.by, "key": each.key, "at": each.at, "comment": each.comment}
            for each in answers
        ],
    }
    message_id = new_id()
    text = _encoded(at, record, body, of_message(record.run_id, "message", message_id, record.queue))
    _, queues = at.store.send(
        [OutgoingMessage(id=message_id, to=record.run_id, queue=record.queue, body=text, sent_at=given.at)]
    )
    # who has answered stays with the question; what was said is in the message alone
    details["answers"] = [{"by": each.by, "key": each.key, "at": each.at.isoformat(), "text": ""} for each in answers]
    details["claimed"] = None
    done = with_details(record, details)
    at.store.put_question(rules.closed(done, rules.ANSWERED if is_approval else rules.REFUSED, given.at))
    return verdict_of(body), queues


def _earlier(at: Runtime, record: QuestionRecord) -> Iterator[PersonAnswer]:
    """Yield the approvals that are kept with a question."""
    for number, each in enumerate(details_of(record)["answers"]):
        said: dict[str, Any] = {"data": None, "comment": ""}
        if each["text"]:
            place = of_message(record.run_id, "message", _key_of_answer(record, number), record.queue)
            said = at.decode(each["text"], place)
        moment = datetime.fromisoformat(each["at"])
        yield PersonAnswer(data=said["data"], by=each["by"], key=each["key"], at=moment, comment=said["comment"])


def _key_of_answer(record: QuestionRecord, number: int) -> str:
    return f"{record.question_id}.{number}"


def _encoded(at: Runtime, record: QuestionRecord, value: Any, place: Any) -> str:
    try:
        return at.encode(value, f'the answer to "{_name(record)}"', place)
    except PayloadError as error:
        raise FormInvalidError(_name(record), {"__all__": [str(error)[:500]]}) from error


def hand_over(question_id: str, to: Any, *, by: Any, comment: str = "") -> None:
    """Ask somebody else instead; see `Question.hand_over`."""
    require_step("handing a question over", "hand it over in a step")
    at = runtime.current()
    known = _known(at, question_id)
    key, label = assignee_of(to)
    if not key:
        raise ValueError("a question is handed over to a user or a group")
    with _attributed(at, "hand_over", known, by) as (attribution, person):
        comment = _checked_text(known, comment)

        def change(record: QuestionRecord) -> QuestionRecord:
            if person.problem or (why_not(record, person) and not person.has_perm(OPERATE)):
                raise NotAllowedError(person.label, _name(record), why_not(record, person))
            details = details_of(record)
            handed = with_details(record, {**details, "claimed": None, "label": label}, assignee=key)
            if hasattr(to, "get_username"):
                other = person_of(to, handed)
                if problem := why_not(handed, other):
                    raise NotAllowedError(other.label, _name(record), problem)
            mailed = None if details["spec"]["mails"] else details["mailed"]
            details = details_of(handed) | {"mailed": mailed}
            text = f"→ {label}" + (f": {comment}" if comment else "")
            handed = with_details(handed, _noted(details, person, text, at.now()))
            return replace(handed, next_at=rules.next_due(handed))

        _change(at, attribution, question_id, change, f"handed over to {label}")


def claim(question_id: str, *, by: Any, takes: bool = True) -> None:
    """Take a question, or give it back; see `Question.claim` and `Question.release`."""
    require_step("claiming a question", "claim it in a step")
    at = runtime.current()
    known = _known(at, question_id)
    with _attributed(at, "claim", known, by) as (attribution, person):

        def change(record: QuestionRecord) -> QuestionRecord:
            _check_person(record, person)
            claimed = {"key": person.key, "by": person.label, "at": at.now().isoformat()} if takes else None
            return with_details(record, {**details_of(record), "claimed": claimed})

        _change(at, attribution, question_id, change, "claimed" if takes else "released")


def comment_on(question_id: str, text: str, *, by: Any) -> None:
    """Write a comment on a question; see `Question.comment`."""
    require_step("commenting on a question", "comment on it in a step")
    at = runtime.current()
    known = _known(at, question_id)
    with _attributed(at, "comment", known, by) as (attribution, person):
        text = _checked_text(known, text)
        if not text:
            raise FormInvalidError(_name(known), {"comment": ["A comment has text."]})

        def change(record: QuestionRecord) -> QuestionRecord:
            _check_person(record, person)
            return with_details(record, _noted(details_of(record), person, text, at.now()))

        _change(at, attribution, question_id, change, "commented on")


def _change(
    at: Runtime,
    attribution: Attribution,
    question_id: str,
    change: Callable[[QuestionRecord], QuestionRecord],
    told: str,
) -> None:
    with at.store.transaction():
        run = attribution.lock()
        record = _known(at, question_id)
        _check_open(at, record, run)
        at.store.put_question(change(record))
        detail = f'question "{display_location(record.location)}" {told}'
        at.store.log([attribution.done(before=run.state, after=run.state, detail=detail)])


def _noted(details: Mapping[str, Any], person: Person, text: str, now: datetime) -> dict[str, Any]:
    note = {"by": person.label, "at": now.isoformat(), "text": text}
    return {**details, "notes": [*details["notes"], note][-_MOST_NOTES:]}


@contextmanager
def _attributed(at: Runtime, action: str, record: QuestionRecord, by: Any) -> Iterator[tuple[Attribution, Person]]:
    """Attribute a verb on a question to the person, by whatever surface it comes."""
    person = person_of(by, record)
    if audit.acting() is None:
        actor = Actor("code", user=person.user, label="" if person.user is not None else person.label)
        with acting_as(actor), audited(at, action, record.run_id) as attribution:
            yield attribution, person
    else:
        with audited(at, action, record.run_id) as attribution:
            yield attribution, person


def _check(at: Runtime, record: QuestionRecord, person: Person, run: RunRecord | None) -> None:
    _check_open(at, record, run)
    _check_person(record, person)


def _check_open(at: Runtime, record: QuestionRecord, run: RunRecord | None) -> None:
    if why := why_closed(at, record, run):
        raise QuestionClosedError(_name(record), why)


def _check_person(record: QuestionRecord, person: Person) -> None:
    if why := why_not(record, person):
        raise NotAllowedError(person.label, _name(record), why)


def _checked_text(record: QuestionRecord, text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(f"a comment is text, not {text!r:.100}")
    if len(text) > _MOST_COMMENT:
        raise FormInvalidError(_name(record), {"comment": [f"A comment has at most {_MOST_COMMENT:,} characters."]})
    return text.strip()
