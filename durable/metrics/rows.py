"""Gauges that are read from the rows at each scrape: every process gives the same values.

Each is a bounded query along an index; none costs more for a larger table. Counting stops at a cap, and a gauge that
shows the cap means that number or more: the workers' counters are better for counting ended runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import Error, connections
from django.utils import timezone
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from durable.conf import conf
from durable.inspection.activities import MOST_ACTIVITIES, hung_steps, list_activities
from durable.inspection.database import transaction_ids
from durable.inspection.held import held_by_reason, held_runs
from durable.inspection.limits import count_rates, count_slots
from durable.inspection.queues import held_workflows, paused_queues
from durable.inspection.reading import from_replica, lost, read_alias
from durable.inspection.schedules import CAP as TICKS
from durable.inspection.schedules import count_ticks, late_schedules
from durable.inspection.workflows import STATE_CAP, count_by_state
from durable.models import DatabaseMark, Run, Tick
from durable.models.run import RunQuerySet
from durable.models.workers import ONLY
from durable.notifier.redis_clients import queue_names
from durable.retention import waiting_since

logger = logging.getLogger("durable.metrics")

NAMES = (
    *("durable_database_up", "durable_runs", "durable_due_runs", "durable_due_age_seconds"),
    *("durable_step_age_seconds", "durable_hung_steps", "durable_held_runs"),
    *("durable_queue_paused", "durable_starts_held", "durable_schedules_late", "durable_ticks_last_hour"),
    *("durable_slots_held", "durable_slots_waiting", "durable_slot_wait_seconds"),
    *("durable_rate_waiting", "durable_rate_keys_closed", "durable_retention_late_seconds"),
    *("durable_transaction_id_age", "durable_database_behind_seconds"),
)


_LATE = 100  # late schedules to count


class RowsCollector(Collector):
    """Runs by state, the backlog of each queue and its age. One scrape is a few statements."""

    def describe(self) -> list[Metric]:
        """Return nothing: prometheus_client would otherwise collect, and so query the database, at registration."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Query the database. Closes the connections that it opens: each scrape may have a thread of its own."""
        aliases = filter(None, {conf.DATABASE, conf.READ_DATABASE})
        opened = [connections[each] for each in aliases if connections[each].connection is None]
        try:
            with from_replica():
                found = self._found()
        finally:
            for each in opened:
                each.close()
        yield _gauge("durable_database_up", "1 if the gauges of runs could be read, else 0", bool(found))
        yield from found

    def _found(self) -> list[Metric]:
        try:
            return [
                self._by_state(),
                *self._due(),
                *self._running(),
                self._held(),
                *self._holds(),
                *self._schedules(),
                *self._slots(),
                *self._rates(),
                self._retention(),
                self._transaction_ids(),
                self._behind(),
            ]
        except Error as error:  # the counts of the workers are still useful
            lost(error)
            logger.warning("metrics cannot be read from the database: %s: %s", type(error).__name__, error)
            return []

    def _by_state(self) -> Metric:
        states = {state: count.number for state, count in count_by_state().items()}
        return _gauge("durable_runs", f"Runs by state; {STATE_CAP} means that or more", states, "state")

    def _running(self) -> list[Metric]:
        now = timezone.now()
        oldest = max((step.seconds for step in list_activities(now, limit=1).steps), default=0.0)
        what = f"Steps that run for far longer than usual; {MOST_ACTIVITIES} or more"
        return [
            _gauge(
                "durable_step_age_seconds", "For how long the step that has run longest has run; 0 without one", oldest
            ),
            _gauge("durable_hung_steps", what, len(hung_steps(now))),
        ]

    def _held(self) -> Metric:
        what = (
            "Runs with a step that waits for a person: it is unknown whether it was done, or its attempts are exhausted; "
            f"{STATE_CAP} in all means that or more"
        )
        held = dict(sorted(held_by_reason(held_runs(most=STATE_CAP)).items()))
        return _gauge("durable_held_runs", what, held, "workflow", "reason")

    def _holds(self) -> list[Metric]:
        names = paused_queues()
        paused = {queue: queue in names for queue in [*queue_names(), *names]}
        held = dict.fromkeys(held_workflows(), True)
        return [
            _gauge("durable_queue_paused", "1 for a queue that an operator has paused", paused, "queue"),
            _gauge("durable_starts_held", "1 for a workflow whose new starts an operator holds", held, "workflow"),
        ]

    def _schedules(self) -> list[Metric]:
        now = timezone.now()
        late = len(late_schedules(now, _LATE))
        ticks = {each: count_ticks(each, now - timedelta(hours=1)).number for each in Tick.Outcome.values}
        what = f"Ticks of the last hour by outcome; {TICKS} means that or more"
        return [
            _gauge("durable_schedules_late", f"Schedules whose tick is late; {_LATE} or more", late),
            _gauge("durable_ticks_last_hour", what, ticks, "outcome"),
        ]

    def _slots(self) -> list[Metric]:
        now, found = timezone.now(), count_slots(STATE_CAP)
        held = {each.name: each.held.number for each in found}
        waiting = {each.name: each.waiting.number for each in found}
        ages = {each.name: _age(each.oldest_at, now) for each in found}
        capped = f"{STATE_CAP} means that or more"
        return [
            _gauge("durable_slots_held", f"Slots of a limit that runs hold; {capped}", held, "limit"),
            _gauge("durable_slots_waiting", f"Runs in line for a slot; {capped}", waiting, "limit"),
            _gauge(
                "durable_slot_wait_seconds", "For how long the first of them has waited; 0 without one", ages, "limit"
            ),
        ]

    def _rates(self) -> list[Metric]:
        found = count_rates(timezone.now(), STATE_CAP)
        waiting = {each.name: each.waiting.number for each in found}
        closed = {each.name: each.closed for each in found}
        what = f"Attempts that wait for their moments in a limit's rate; {STATE_CAP} means that or more"
        return [
            _gauge("durable_rate_waiting", what, waiting, "limit"),
            _gauge(
                "durable_rate_keys_closed",
                "Keys of a limit's rate that are closed; all of them count as one",
                closed,
                "limit",
            ),
        ]

    def _retention(self) -> Metric:
        since = waiting_since(read_alias())
        return _gauge(
            "durable_retention_late_seconds",
            "For how long the oldest run past its RETENTION has waited to be deleted; a minute or two is usual",
            {} if since is None else _age(since, timezone.now()),
        )

    def _transaction_ids(self) -> Metric:
        ids = transaction_ids(read_alias())
        return _gauge(
            "durable_transaction_id_age",
            "How many transactions ago the oldest transaction that is not frozen began, of all databases of the server",
            {} if ids is None else ids.age,
        )

    def _behind(self) -> Metric:
        row = DatabaseMark.objects.using(read_alias()).filter(pk=ONLY, mark_at__isnull=False).first()
        seconds = 0.0
        if row is not None and row.mark_at is not None:  # another database with this name may have come as far
            seconds = max((row.mark_at - row.written_at).total_seconds(), 1.0)
        what = "By how much the database is behind its mark, 0 if it is not: workers claim nothing while it is"
        return _gauge("durable_database_behind_seconds", what, seconds)

    def _due(self) -> list[Metric]:
        now = timezone.now()
        counts: dict[str, int] = {}
        ages: dict[str, float] = {}
        for queue in queue_names():
            due: RunQuerySet = Run.objects.using(read_alias()).filter(queue=queue).due(now).order_by("wake_at", "id")
            oldest = due.values_list("wake_at", flat=True).first()
            counts[queue] = due.values("id")[:STATE_CAP].count() if oldest else 0
            ages[queue] = _age(oldest, now)
        what = f"Runs that a worker could take now; {STATE_CAP} means that or more"
        return [
            _gauge("durable_due_runs", what, counts, "queue"),
            _gauge(
                "durable_due_age_seconds", "For how long the longest of them has been due; 0 without one", ages, "queue"
            ),
        ]


def _age(since: datetime | None, now: datetime) -> float:
    return 0.0 if since is None else max(0.0, (now - since).total_seconds())


def _gauge(name: str, help: str, values: float | Mapping[Any, float], *labels: str) -> Metric:
    """Return a gauge with one value, or with a value for each label or tuple of labels; {} for none."""
    family = GaugeMetricFamily(name, help, labels=labels)
    for key, value in (values if isinstance(values, Mapping) else {(): values}).items():
        family.add_metric([key] if isinstance(key, str) else key, float(value))
    return family
