"""Priorities and shares: what a start has said of a run's rank, and what claims and starts know of a queue.

Side tables: a queue whose runs have neither priorities nor shares has no row in them.
"""

from __future__ import annotations

from django.db import models

from durable.core.ids import MAX_ID
from durable.core.ranks import Ranking, ShareTag
from durable.models.fields import MomentField, NameField
from durable.models.rows import Row
from durable.models.run import Run


class RunRank(Row):
    """The rank that the start of a run has given (`durable.core.ranks.Ranking`)."""

    # no constraint in the database: the row is inserted in the transaction that has inserted the run
    run = models.OneToOneField(
        Run, on_delete=models.CASCADE, primary_key=True, related_name="ranking", db_constraint=False
    )
    priority = NameField[str, str](max_length=MAX_ID, blank=True)
    head_start = models.IntegerField()
    share = NameField[str, str](max_length=MAX_ID, blank=True)
    weight = models.FloatField()

    def __str__(self) -> str:
        return self.run_id

    @property
    def record(self) -> Ranking:
        """The ranking as the engine has it."""
        return Ranking(priority=self.priority, head_start=self.head_start, share=self.share, weight=self.weight)


class Lane(Row):
    """A head start that runs of a queue have had. A claim looks at the first due runs of each."""

    queue = NameField[str, str](max_length=MAX_ID)
    head_start = models.IntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "head_start"], name="durable_lane_once")]

    def __str__(self) -> str:
        return f"{self.queue} {self.head_start}"


class Share(Row):
    """The position of a share of a queue (`durable.core.ranks.ShareTag`); the share "" is the queue itself."""

    queue = NameField[str, str](max_length=MAX_ID)
    share = NameField[str, str](max_length=MAX_ID, blank=True)
    tag = MomentField(null=True, blank=True)
    round = models.BigIntegerField(default=0)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["queue", "share"], name="durable_share_once")]

    def __str__(self) -> str:
        return f"{self.queue} {self.share}"

    @property
    def record(self) -> ShareTag:
        """The tag as the engine has it."""
        return ShareTag(self.tag, self.round)
