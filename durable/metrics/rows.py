"""Gauges that are read from the rows at each scrape: every process gives the same values.

Each is a bounded query along an index; none costs more for a larger table. Counting stops at a cap, and a gauge that
shows the cap means that number or more: the workers' counters are better for counting ended runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

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
    "durable_database_up",
    "durable_runs",
    "durable_due_runs",
    "durable_due_age_seconds",
    "durable_step_age_seconds",
    "durable_hung_steps",
    "durable_held_runs",
    "durable_queue_paused",
    "durable_starts_held",
    "durable_schedules_late",
    "durable_ticks_last_hour",
    "durable_slots_held",
    "durable_slots_waiting",
    "durable_slot_wait_seconds",
    "durable_rate_waiting",
    "durable_rate_keys_closed",
    "durable_retention_late_seconds",
    "durable_transaction_id_age",
    "durable_database_behind_seconds",
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
        up = GaugeMetricFamily(
            "durable_database_up", "1 if the gauges of runs could be read, else 0", value=bool(found)
        )
        yield from [up, *found]

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
        family = GaugeMetricFamily("durable_runs", f"Runs by state; {STATE_CAP} means that or more", labels=["state"])
        for state, count in count_by_state().items():
            family.add_metric([state], count.number)
        return family

    def _running(self) -> list[Metric]:
        now = timezone.now()
        oldest = GaugeMetricFamily(
            "durable_step_age_seconds", "For how long the step that has run longest has run; 0 without one"
        )
        oldest.add_metric([], max((step.seconds for step in list_activities(now, limit=1).steps), default=0.0))
        hung = GaugeMetricFamily(
            "durable_hung_steps", f"Steps that run for far longer than usual; {MOST_ACTIVITIES} or more"
        )
        hung.add_metric([], len(hung_steps(now)))
        return [oldest, hung]

    def _held(self) -> Metric:
        held = GaugeMetricFamily(
            "durable_held_runs",
            "Runs with a step that waits for a person: it is unknown whether it was done, or its attempts are exhausted; "
            f"{STATE_CAP} in all means that or more",
            labels=["workflow", "reason"],
        )
        for (workflow, reason), number in sorted(held_by_reason(held_runs(most=STATE_CAP)).items()):
            held.add_metric([workflow, reason], number)
        return held

    def _holds(self) -> list[Metric]:
        paused = GaugeMetricFamily(
            "durable_queue_paused", "1 for a queue that an operator has paused", labels=["queue"]
        )
        held = GaugeMetricFamily(
            "durable_starts_held", "1 for a workflow whose new starts an operator holds", labels=["workflow"]
        )
        names = paused_queues()
        for queue in dict.fromkeys([*queue_names(), *names]):
            paused.add_metric([queue], float(queue in names))
        for workflow in held_workflows():
            held.add_metric([workflow], 1.0)
        return [paused, held]

    def _schedules(self) -> list[Metric]:
        now = timezone.now()
        late = GaugeMetricFamily("durable_schedules_late", f"Schedules whose tick is late; {_LATE} or more")
        late.add_metric([], len(late_schedules(now, _LATE)))
        ticks = GaugeMetricFamily(
            "durable_ticks_last_hour",
            f"Ticks of the last hour by outcome; {TICKS} means that or more",
            labels=["outcome"],
        )
        for outcome in Tick.Outcome.values:
            ticks.add_metric([outcome], count_ticks(outcome, now - timedelta(hours=1)).number)
        return [late, ticks]

    def _slots(self) -> list[Metric]:
        now = timezone.now()
        held = GaugeMetricFamily(
            "durable_slots_held", f"Slots of a limit that runs hold; {STATE_CAP} means that or more", labels=["limit"]
        )
        waiting = GaugeMetricFamily(
            "durable_slots_waiting", f"Runs in line for a slot; {STATE_CAP} means that or more", labels=["limit"]
        )
        oldest = GaugeMetricFamily(
            "durable_slot_wait_seconds", "For how long the first of them has waited; 0 without one", labels=["limit"]
        )
        for each in count_slots(STATE_CAP):
            held.add_metric([each.name], each.held.number)
            waiting.add_metric([each.name], each.waiting.number)
            age = 0.0 if each.oldest_at is None else max(0.0, (now - each.oldest_at).total_seconds())
            oldest.add_metric([each.name], age)
        return [held, waiting, oldest]

    def _rates(self) -> list[Metric]:
        waiting = GaugeMetricFamily(
            "durable_rate_waiting",
            f"Attempts that wait for their moments in a limit's rate; {STATE_CAP} means that or more",
            labels=["limit"],
        )
        closed = GaugeMetricFamily(
            "durable_rate_keys_closed",
            "Keys of a limit's rate that are closed; all of them count as one",
            labels=["limit"],
        )
        for each in count_rates(timezone.now(), STATE_CAP):
            waiting.add_metric([each.name], each.waiting.number)
            closed.add_metric([each.name], each.closed)
        return [waiting, closed]

    def _retention(self) -> Metric:
        late = GaugeMetricFamily(
            "durable_retention_late_seconds",
            "For how long the oldest run past its RETENTION has waited to be deleted; a minute or two is usual",
        )
        if (since := waiting_since(read_alias())) is not None:
            late.add_metric([], max(0.0, (timezone.now() - since).total_seconds()))
        return late

    def _transaction_ids(self) -> Metric:
        age = GaugeMetricFamily(
            "durable_transaction_id_age",
            "How many transactions ago the oldest transaction that is not frozen began, of all databases of the server",
        )
        if (ids := transaction_ids(read_alias())) is not None:
            age.add_metric([], ids.age)
        return age

    def _behind(self) -> Metric:
        behind = GaugeMetricFamily(
            "durable_database_behind_seconds",
            "By how much the database is behind its mark, 0 if it is not: workers claim nothing while it is",
        )
        row = DatabaseMark.objects.using(read_alias()).filter(pk=ONLY, mark_at__isnull=False).first()
        seconds = 0.0
        if row is not None and row.mark_at is not None:  # another database with this name may have come as far
            seconds = max((row.mark_at - row.written_at).total_seconds(), 1.0)
        behind.add_metric([], seconds)
        return behind

    def _due(self) -> list[Metric]:
        count = GaugeMetricFamily(
            "durable_due_runs", f"Runs that a worker could take now; {STATE_CAP} means that or more", labels=["queue"]
        )
        age = GaugeMetricFamily(
            "durable_due_age_seconds", "For how long the longest of them has been due; 0 without one", labels=["queue"]
        )
        now = timezone.now()
        for queue in queue_names():
            due: RunQuerySet = Run.objects.using(read_alias()).filter(queue=queue).due(now)
            oldest = due.order_by("wake_at", "id").values_list("wake_at", flat=True).first()
            count.add_metric([queue], due.order_by("wake_at", "id").values("id")[:STATE_CAP].count() if oldest else 0)
            age.add_metric([queue], max(0.0, (now - oldest).total_seconds()) if oldest else 0.0)
        return [count, age]
