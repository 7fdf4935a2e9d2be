"""What the database holds: runs, their histories, their inboxes and the audit log.

The models state columns, constraints and indexes. They decide nothing about workflows, and surfaces write them
through `durable.operations` alone.
"""

from durable.models.audit import OperatorAction
from durable.models.history import Attempt, Entry, EntryMetadata
from durable.models.idempotency import IdempotencyKey
from durable.models.inbox import QueueMessage
from durable.models.run import Run

__all__ = ["Attempt", "Entry", "EntryMetadata", "IdempotencyKey", "OperatorAction", "QueueMessage", "Run"]
