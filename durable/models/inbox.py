"""Input of a run from outside: messages, links, events, starts and sends by key, and requests that may be repeated.

Side tables: a run that was started without a key, and one that waits for no event, has no row.
"""

from __future__ import annotations

from typing import Final

from django.db import models
from django.db.models import Q

from durable.core.ids import MAX_ID
from durable.core.records import AwaitedEvent, EventRecord, KeyRecord, MessageState
from durable.models.rows import JSONTextField, MomentField, NameField, QueueField, Recorded, Row, SafeTextField, choices
from durable.models.run import Run


class QueueMessage(Row):
    """One message in a run's inbox.

    `order` is the order of the senders' commits: it is assigned while the run's row is locked. A message is `pending`,
    then `received` by the wait at `received_by`, and `completed`, perhaps with a response, if that wait asked for it.
    Or it is `refused`: then the response is the reason.
    """

    id = NameField[str, str](primary_key=True, max_length=200)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="inbox", db_index=False)
    queue = QueueField[str, str](max_length=768)  # 128 characters, escaped
    body = SafeTextField[str, str]()
    sent_at = models.DateTimeField()
    order = models.BigIntegerField()
    state = NameField[str, str](max_length=16, choices=choices(MessageState), default=MessageState.PENDING.value)
    received_by = NameField[str, str](max_length=1024, default="", blank=True)
    response = SafeTextField[str | None, str | None](null=True, blank=True)
    idempotency_id = NameField[str | None, str | None](max_length=400, null=True, blank=True)

    class Meta:
        ordering = ["run", "order"]
        indexes = [
            models.Index(
                fields=["run", "order"], condition=Q(state=MessageState.PENDING.value), name="durable_message_pending"
            ),
        ]
        constraints = [
            models.UniqueConstraint(fields=["run", "order"], name="durable_message_once_per_order"),
            # absent ids (NULL) differ from each other, in every database
            models.UniqueConstraint(fields=["run", "idempotency_id"], name="durable_message_once_per_id"),
            models.CheckConstraint(condition=Q(order__gt=0), name="durable_message_order_from_one"),
            models.CheckConstraint(
                condition=Q(state__in=[state.value for state in MessageState]), name="durable_message_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(state=MessageState.PENDING.value, received_by="")
                | (~Q(state=MessageState.PENDING.value) & ~Q(received_by="")),
                name="durable_message_received_by_a_wait",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.queue} #{self.order}"


class Link(Row):
    """A link of a run (`durable.core.records.LinkRecord`): an address at which the outside answers the run, once.

    The address contains a token, of which only the SHA-256 is kept. The row stays until its run is deleted, so that a
    link that leads nowhere any more is distinguished from one that never was.
    """

    token_hash = models.CharField(max_length=64, unique=True)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="links", db_index=False)
    link_id = models.CharField(max_length=16)
    location = NameField[str, str](max_length=1024)
    queue = QueueField[str, str](max_length=768)
    generation = models.IntegerField(default=0)
    verify = SafeTextField[str, str](default="", blank=True)
    opened_at = models.DateTimeField()
    expires_at = MomentField(null=True, blank=True)
    used_at = models.DateTimeField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    message_id = NameField[str, str](max_length=200, default="", blank=True)

    class Meta:
        indexes = [models.Index(fields=["run", "opened_at"], name="durable_link_of_run")]
        constraints = [
            models.UniqueConstraint(
                fields=["run", "link_id"], condition=Q(used_at__isnull=False), name="durable_link_used_once"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.location}"


class Question(Row):
    """A question of a run to people (`durable.core.records.QuestionRecord`).

    Inboxes search the open ones, by whom they are for. The row stays until its run is deleted, so that a question that
    was decided is distinguished from one that never was.
    """

    question_id = models.CharField(max_length=32, unique=True)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="questions", db_index=False)
    location = NameField[str, str](max_length=1024)
    queue = QueueField[str, str](max_length=768)
    form = SafeTextField[str, str](default="", blank=True)
    permission = NameField[str, str](max_length=255, default="", blank=True)
    assignee = NameField[str, str](max_length=1_500, default="", blank=True)
    about = SafeTextField[str, str](default="", blank=True)
    nonce = models.CharField(max_length=64)
    asked_at = models.DateTimeField()
    expires_at = MomentField(null=True, blank=True)
    next_at = MomentField(null=True, blank=True)
    closed_at = models.DateTimeField(null=True, blank=True)
    outcome = NameField[str, str](max_length=16, default="", blank=True)
    barred = SafeTextField[str, str](default="", db_default="", blank=True)
    claimed = NameField[str, str](max_length=1_500, default="", db_default="", blank=True)
    details = SafeTextField[str, str]()

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["run", "asked_at"], name="durable_question_of_run"),
            models.Index(
                fields=["assignee", "permission", "asked_at"],
                condition=Q(closed_at__isnull=True),
                name="durable_question_open",
            ),
            models.Index(
                fields=["next_at"],
                condition=Q(closed_at__isnull=True, next_at__isnull=False),
                name="durable_question_due",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.location}"


class RunKey(Row):
    """The key with which a run was started (`durable.core.records.KeyRecord`).

    The end of the run closes the row in the same commit, a recovery opens it again. Two starts conflict in the unique
    index, in which closed rows (NULL) do not count. Not a partial index, because not every database has these.
    """

    # no constraint in the database: the key is taken before its run is inserted, in one statement
    run = models.OneToOneField(Run, on_delete=models.CASCADE, primary_key=True, related_name="key", db_constraint=False)
    workflow = NameField[str, str](max_length=MAX_ID)
    key = NameField[str, str](max_length=MAX_ID)
    is_open = models.BooleanField(default=True, null=True)  # True or NULL
    taken_at = models.DateTimeField()
    moves = models.IntegerField(default=0)
    moved_at = models.DateTimeField(null=True, blank=True)
    follows = NameField[str | None, str | None](max_length=MAX_ID, null=True, blank=True)

    class Meta:
        indexes = [
            models.Index(fields=["follows"], condition=Q(follows__isnull=False), name="durable_runkey_of_the_next"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["workflow", "key", "is_open"], name="durable_runkey_one_open_run"),
            models.CheckConstraint(condition=~Q(is_open=False), name="durable_runkey_is_open_or_null"),
        ]

    def __str__(self) -> str:
        return self.key

    record = Recorded(KeyRecord, is_open=lambda row: bool(row.is_open))


class KeyedSend(Row):
    """A message of `start_or_send`, and the input of the run that it would have started (`core.records.KeyedSend`).

    If the run completes without receiving the message, another run gets it, with this input.
    """

    message_id = NameField[str, str](primary_key=True, max_length=200)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="keyed_sends", db_constraint=False)
    input = SafeTextField[str | None, str | None](null=True, blank=True)
    was_first = models.BooleanField(default=False)


class IdempotencyKey(Row):
    """A key that a client gave to a request, the request's fingerprint, and the answer.

    The row is written in the transaction of the requested change, so that neither exists without the other. It holds no
    payload: answers name runs and messages, they do not quote them. Keys are unique for one owner; other owners may use
    the same keys. A row is kept for a day after `created_at`.
    """

    owner = NameField[str, str](max_length=200)
    key = NameField[str, str](max_length=255)
    fingerprint = NameField[str, str](max_length=64)
    # identifies the request that inserted the row, so that it can recognize its own row
    claim = NameField[str, str](max_length=36)
    status = models.IntegerField(default=0)
    body = SafeTextField[str, str](default="", blank=True)
    headers = JSONTextField[dict[str, str], dict[str, str]](default=dict, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        indexes = [models.Index(fields=["created_at"], name="durable_key_oldest")]
        constraints = [models.UniqueConstraint(fields=["owner", "key"], name="durable_key_once_per_owner")]

    def __str__(self) -> str:
        return self.key


_EVENT_NAME: Final = 128  # characters


class EventKey(Row):
    """A name and a key under which something was published.

    A publisher locks the row until it commits. So the numbers of the events of one key are in the order of commits.
    """

    name = NameField[str, str](max_length=_EVENT_NAME)
    key = NameField[str, str](max_length=MAX_ID)

    class Meta:
        default_permissions = ()
        constraints = [models.UniqueConstraint(fields=["name", "key"], name="durable_eventkey_once")]

    def __str__(self) -> str:
        return f"{self.name} {self.key}"


class Event(Row):
    """An event that was published (`durable.core.records.EventRecord`). Its number is the primary key."""

    name = NameField[str, str](max_length=_EVENT_NAME)
    key = NameField[str, str](max_length=MAX_ID)
    event_id = NameField[str, str](max_length=MAX_ID)
    body = SafeTextField[str, str]()
    published_at = models.DateTimeField()
    delivered = models.IntegerField(default=0)
    is_open = models.BooleanField(default=True)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["name", "key", "id"], name="durable_event_of_key"),
            models.Index(fields=["published_at"], name="durable_event_oldest"),
            models.Index(fields=["id"], condition=Q(is_open=True), name="durable_event_open"),
        ]
        constraints = [models.UniqueConstraint(fields=["name", "event_id"], name="durable_event_once")]

    def __str__(self) -> str:
        return f"{self.name} {self.event_id}"

    record = Recorded(EventRecord, id=lambda row: row.event_id, number=lambda row: row.pk)


class EventWait(Row):
    """A run's wait for an event (`durable.core.records.AwaitedEvent`). The event's delivery deletes the row."""

    id = NameField[str, str](primary_key=True, max_length=64)
    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="event_waits", db_index=False)
    location = NameField[str, str](max_length=1024)
    queue = QueueField[str, str](max_length=768)
    name = NameField[str, str](max_length=_EVENT_NAME)
    key = NameField[str, str](max_length=MAX_ID)
    after = models.BigIntegerField()
    since = MomentField(null=True, blank=True)
    seen = models.BigIntegerField(default=0)

    class Meta:
        default_permissions = ()
        indexes = [
            models.Index(fields=["name", "key", "after"], name="durable_eventwait_of_key"),
            models.Index(fields=["run"], name="durable_eventwait_of_run"),
        ]

    def __str__(self) -> str:
        return f"{self.run_id}: {self.name}"

    record = Recorded(AwaitedEvent)
