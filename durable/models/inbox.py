"""A run's inbox: the messages that were sent to the run."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from durable.core.records import MessageState
from durable.models.fields import NameField, QueueField, SafeTextField, choices
from durable.models.rows import Row
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
            # absent ids are all different, in every database
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
