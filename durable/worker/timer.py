"""The timer and the sweep: threads that notify workers of runs that become due by the passing of time.

The *timer* notifies at the deadline of a sleep, a backoff or a wait. The *sweep* notifies, every `SWEEP_INTERVAL`, of
all queues with runs that are due or whose lease expired. So it makes up for every lost notification and alarm; it
enqueues a job even where a pending-notification key says that there is one. The sweep also goes on with what others
have left: held starts that were released, children to cancel, turns and slots of limits, events. Neither executes a
run. Any number of them may run at once: notifications are coalesced, and the job of a superfluous one finds nothing to
do. They survive any outage of the database or Redis.

The sweep also says how far the database has come (`durable.marks`). It logs a database that has gone back in time.

Between two notifications it counts ended runs (`durable.rollups`), and spends a short time on deleting rows
past their `RETENTION` (`durable.retention` decides which).

The *ticker* ticks schedules at their moments (`durable.operations.schedules`); it checks once a second. It is a thread
of its own, so that thousands of ticks at one moment do not delay deadlines of runs. At each check it also hands on
slots that runs have given up outside a pass.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from types import TracebackType
from typing import Final, Self

from django.utils.module_loading import import_string
from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from durable import marks, signals
from durable.conf import conf
from durable.core import clock
from durable.core.names.renames import names_of_queue
from durable.core.records import ActionRecord, RunState
from durable.execution.connections import SESSION_TROUBLE, close_connections, close_stale_connections, worker_name
from durable.notifier import channel, notify, redis_clients, registry
from durable.operations.events import deliver_open, forget_old
from durable.operations.schedules.tick import next_look, tick_due
from durable.retention import Policy, Pruned, Pruner, RetentionError, note_progress
from durable.rollups import Roller
from durable.store import clocks
from durable.store.base import Store
from durable.worker import presence
from durable.worker.presence import RETRY
from durable.worker.unanswered import answered_within, watch_connections

logger = logging.getLogger("durable.timer")

# The fewest seconds between two ticks, even if deadlines are dense: a fifth of the timer's allowed delay.
PAUSE: Final = 0.01
# The overlap of two ticks' time ranges, for commits that come later than the time written in them.
OVERLAP: Final = timedelta(seconds=1)
# The seconds of a sweep spent on deleting rows. A round that is not over takes twice as much of the next sweep, up to
# this share of the interval, so that no sweep is late.
PRUNE_FOR: Final = 2.0
PRUNE_SHARE: Final = 0.8
# Seconds between the beginnings of two rounds of pruning, so that an idle database is not searched at every sweep.
PRUNE_EVERY: Final = 60.0
# The most seconds of one sweep spent on each of what others have left: events for runs that wait, held runs, children
# of ended runs, turns. And how many held runs are resumed at a time.
CONTINUE_FOR: Final = 2.0
RELEASE_AT_ONCE: Final = 100
# The time for which a key of a rate is kept that nobody uses, and how many keys a transaction deletes: it locks them.
KEYS_KEPT: Final = timedelta(days=1)
KEYS_AT_ONCE: Final = 500
MOST_MET: Final = 1_000  # remembered names of queues that no workflow names
# Seconds between two audit rows about pruning, so that the log grows by at most one row an hour.
LOG_EVERY: Final = 3_600.0
# Seconds without an answer after which Redis is away.
SILENCE: Final = 2.0
# Seconds between two turns of the chores.
CHORES_EVERY: Final = timedelta(seconds=30)
# The most seconds between two checks of schedules, which notice new schedules, ended runs and a clock that was set.
LOOK_EVERY: Final = timedelta(seconds=1)
# The most notes about slots to process in one check.
_NOTES_AT_ONCE: Final = 200
# Seconds until the next check if other tickers have locked the due schedules.
_HELD_BY_OTHERS: Final = timedelta(milliseconds=50)
#: Functions called with the time. Each returns soon, and several processes may call it at once. They are given by name,
#: because their packages are above this one and only the process of the sweep needs them.
CHORES: Final = (
    "durable.operations.restored.continue_hold",
    "durable.alerts.watch.look",
    "durable.inspection.history_counts.count_long_histories",
    "durable.operations.question_mails.remind",
)

_log_this = redis_clients.LogThrottle()


class Periodic:
    """A thread that calls `tick`, waits until the time that it returned, and repeats. A context manager."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self._condition = threading.Condition()
        self._next: datetime | None = None
        #: When a tick last succeeded (monotonic): the database answered then.
        self.succeeded_at: float | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread; the first tick is at once."""
        watch_connections()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for its end."""
        with self._condition:
            self._stopping = True
            self._condition.notify_all()
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def tick(self, now: datetime) -> datetime:
        """Notify of what is due at `now`, and return the time of the next tick."""
        raise NotImplementedError

    def bring_forward(self, moment: datetime) -> None:
        """Tick at `moment`, if that is earlier than the next tick."""
        with self._condition:
            if self._next is None or moment < self._next:
                self._next = moment
                self._condition.notify_all()

    def _run(self) -> None:
        try:
            while not self._stopping:
                with self._condition:
                    self._next = None  # from here on, an alarm may arrive for a deadline that the tick misses
                try:
                    self.bring_forward(self._tick_safely())
                    self._wait()
                except Exception:  # the thread must survive every error
                    logger.exception("the %s failed, trying again", type(self).__name__.lower())
                    time.sleep(RETRY)
        finally:
            close_connections()

    def _tick_safely(self) -> datetime:
        name = type(self).__name__.lower()
        try:
            with answered_within(conf.LEASE):
                close_stale_connections(all_connections=True)
                clocks.look(conf.DATABASE)
            moment = self.tick(clock.now())
            self.succeeded_at = time.monotonic()
        except SESSION_TROUBLE as error:
            close_connections()
            if _log_this(name):
                logger.warning("the %s cannot read deadlines, trying again: %s: %s", name, type(error).__name__, error)
            return clock.now() + timedelta(seconds=RETRY)
        except Exception:  # the thread must survive every error
            close_connections()
            if _log_this(name):
                logger.exception("the %s failed, trying again", name)
            return clock.now() + timedelta(seconds=RETRY)
        if _log_this.clear(name):
            logger.warning("the %s goes on", name)
        return moment

    def _wait(self) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._stopping, timeout=PAUSE)
            while not self._stopping and (remaining := self._remaining()) > 0:
                self._condition.wait(remaining)

    def _remaining(self) -> float:
        """Return the seconds until the next tick, at most a sweep's interval: the clock may have been set."""
        if self._next is None:
            return 0.0
        return min((self._next - clock.now()).total_seconds(), conf.SWEEP_INTERVAL)


class Timer(Periodic):
    """Notifies at deadlines: less than 50 ms late on an idle machine, or a sweep's interval late if Redis lost an
    alarm.

    Without Redis it does the same while `hears` says that PostgreSQL notifies of due runs (`durable.worker.listener`).
    Otherwise, and while Redis is away, it polls: every POLL_INTERVAL it notifies of all queues with due runs.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store, "durable-timer")
        self._looked_at: datetime | None = None
        self._met: set[str] = set()
        #: True while notifications of other processes arrive from PostgreSQL.
        self.hears = False

    def set_hears(self, *, value: bool) -> None:
        """Note whether notifications arrive, and look at once for what was not heard."""
        self.hears, self._looked_at = value, None
        self.bring_forward(clock.now())

    def meet(self, queue: str) -> None:
        """Look for deadlines in this queue too, which no workflow may name."""
        if len(self._met) < MOST_MET:
            self._met.add(queue)

    def look_within(self, seconds: float) -> None:
        """Tick in so many seconds, if not before."""
        self.bring_forward(clock.now() + timedelta(seconds=seconds))

    def tick(self, now: datetime) -> datetime:
        """Notify the queues with runs that have become due since the last tick, and return the time of the next tick.

        That is the next deadline, or when to query for it again.

        The sweep notifies of earlier due runs that no worker has claimed.
        """
        with answered_within(conf.LEASE):
            return self._tick(now)

    def _tick(self, now: datetime) -> datetime:
        known = [*redis_clients.queue_names(), *self._met]
        queues = list(dict.fromkeys(name for each in known for name in names_of_queue(each)))
        is_polling = redis_clients.must_poll() if conf.REDIS else not self.hears
        if self._looked_at is None or is_polling:
            due = self.store.due_queues(now)
        else:
            due = self.store.due_queues(now, queues=queues, since=min(self._looked_at, now) - OVERLAP)
        for queue in due:
            notify.notify_of_found(queue)
        self._looked_at = now
        ask_again = now + timedelta(seconds=conf.POLL_INTERVAL if is_polling else conf.SWEEP_INTERVAL)
        deadline = self.store.next_deadline(queues, now, until=ask_again)
        return min(deadline, ask_again) if deadline is not None else ask_again


class Sweep(Periodic):
    """Notifies all queues with due runs or expired leases every SWEEP_INTERVAL, even if a notification is pending."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "durable-sweep")
        self._roller = Roller()
        self._pruner: Pruner | None = None
        self._round: Iterator[Pruned] | None = None
        self._prune_for = PRUNE_FOR
        self._next_round = 0.0
        self._unlogged = Pruned()
        self._next_search = 0.0  # when to search for dead workers and forgotten slots again, monotonic
        self._last_group = ""  # the last group whose turns were checked
        self._next_row = 0.0  # when the next audit row may be written, monotonic
        #: Why workers claim nothing in this database, as the last sweep has found it; "" if they may.
        self.holds_back = ""

    def tick(self, now: datetime) -> datetime:
        """Notify, count ended runs, prune for a short time, and return the time of the next sweep."""
        self.store.learn_queues()
        self._mark()
        for queue in self.store.due_queues(now):
            notify.notify_of_found(queue, force=True)
        registry.record(now, worker_name())
        deliver_open(_a_while())
        self._roller.look(now)
        self._prune(now)
        self._log(now)
        self._clear_up(now)
        self._release_starts(now)
        self._cascade(now)
        self._give_turns(now)
        return now + timedelta(seconds=conf.SWEEP_INTERVAL)

    def _mark(self) -> None:
        """Raise the database's mark, or log that the database has gone back in time."""
        position = marks.keep(worker_name())
        self.holds_back = position.in_short()
        if position.is_behind:
            if _log_this("mark"):
                logger.error("%s. Decide with `manage.py durable restored`", position.in_words())
        elif _log_this.clear("mark"):
            logger.warning("it was decided about the database that went back in time")

    def _give_turns(self, now: datetime) -> None:
        """For a short time, start children whose turns came while their rows were locked."""
        until = time.monotonic() + _a_while()
        while not self._stopping and time.monotonic() < until:
            found = self.store.give_turns(self._last_group, now)
            if found is None:
                self._last_group = ""
                return
            self._last_group, queues = found
            for queue in queues:
                notify.notify(queue)

    def _cascade(self, now: datetime) -> None:
        """For a short time, cancel children of ended runs that are still open; each parent's in batches."""
        until = time.monotonic() + _a_while()
        last = ""
        while not self._stopping and time.monotonic() < until and (found := self.store.cascade(last, now)) is not None:
            parent, number = found
            if not number:  # the others are locked: the next sweep continues with them
                last = parent

    def _release_starts(self, now: datetime) -> None:
        """Resume runs paused by a hold that has been released, if the release did not resume all of them."""
        until = time.monotonic() + _a_while()
        while not self._stopping and (runs := self.store.release_starts(now, RELEASE_AT_ONCE)):
            for run in runs:
                signals.send(
                    signals.run_changed,
                    run=run.id,
                    workflow=run.workflow,
                    state=str(run.state),
                    previous=str(RunState.PAUSED),
                )
            for queue in {run.queue for run in runs if run.wake_at is not None and run.wake_at <= now}:
                notify.notify(queue)
            if time.monotonic() >= until:
                return

    def _clear_up(self, now: datetime) -> None:
        """Now and then, delete the rows of workers that have been dead for long and of keys of limits that nobody uses,
        and give up forgotten slots.
        """
        if time.monotonic() < self._next_search:
            return
        self._next_search = time.monotonic() + PRUNE_EVERY
        presence.forget_dead(now)
        channel.end_stuck_listeners()
        forget_old(PRUNE_FOR)
        self._forget_keys(now)
        for run in self.store.give_up_idle_slots(now, RELEASE_AT_ONCE):
            text = "run %s slept with slots that are for its passes alone: they are given up, and the run is woken"
            logger.warning(text, run.id, extra={"run_id": run.id, "workflow": run.workflow})
            notify.notify(run.queue)

    def _forget_keys(self, now: datetime) -> None:
        """For a short time, delete keys of limits that nobody uses."""
        until = time.monotonic() + _a_while()
        while not self._stopping and time.monotonic() < until:
            if self.store.forget_limit_keys(now - KEYS_KEPT, KEYS_AT_ONCE) < KEYS_AT_ONCE:
                return

    def _prune(self, now: datetime) -> None:
        """For a short time, continue the round of pruning, or begin one if it is due."""
        if self._round is None:
            if time.monotonic() < self._next_round or (pruner := _pruner()) is None:
                return
            self._pruner, self._round, self._prune_for = pruner, pruner.batches(now), PRUNE_FOR
            self._next_round = time.monotonic() + PRUNE_EVERY
        until = time.monotonic() + min(self._prune_for, conf.SWEEP_INTERVAL * PRUNE_SHARE)
        pruning, self._round = self._round, None  # an error ends the round
        total = Pruned()
        try:
            for pruned in pruning:
                total += pruned
                if self._stopping or time.monotonic() >= until:
                    self._round = pruning
                    self._prune_for *= 2
                    break
        finally:
            if self._pruner is not None and self._pruner.reached is not None:
                note_progress(self._pruner.reached)
        if total != Pruned():
            logger.info("past their retention: %d runs and %d rows of the audit log", total.runs, total.actions)
            self._unlogged += total

    def _log(self, now: datetime) -> None:
        """Log what this process has pruned, seldom enough that pruning does not make the audit log grow."""
        if self._unlogged == Pruned() or time.monotonic() < self._next_row:
            return
        pruned, self._unlogged = self._unlogged, Pruned()
        self._next_row = time.monotonic() + LOG_EVERY
        row = ActionRecord(
            action="prune",
            run_id="",
            source="code",
            outcome="done",
            created_at=now,
            actor_label=f"the sweep of {worker_name()}",
            reason='DURABLE["RETENTION"]',
            detail=f"{pruned.runs} runs, {pruned.actions} rows of the audit log",
        )
        with self.store.transaction():
            self.store.log([row])


def _a_while() -> float:
    """Return for how many seconds a sweep continues one thing that others have left."""
    return min(CONTINUE_FOR, conf.SWEEP_INTERVAL / 2)


def _pruner() -> Pruner | None:
    """Return the Pruner of the settings; None if they keep everything or cannot be read."""
    try:
        policy = Policy.of(conf.RETENTION)
    except RetentionError as error:
        if _log_this("retention"):
            logger.error('nothing is pruned, DURABLE["RETENTION"] cannot be read: %s. %s', error, error.hint)
        return None
    return None if policy.keeps_all else Pruner(policy, conf.DATABASE)


class Chores(Periodic):
    """Calls the functions in `CHORES` every half minute."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "durable-chores")

    def tick(self, now: datetime) -> datetime:
        """Call all of them, and return the time of the next turn."""
        for chore in CHORES:
            import_string(chore)(now)
        return now + CHORES_EVERY


class DeadlineListener:
    """Listens for alarms (`durable.notifier.notify.notify_at`) and brings the timer forward.

    One thread for each Redis. It notices within seconds that Redis is away, and that it is back.
    """

    def __init__(self, timer: Timer) -> None:
        self.timer = timer
        #: Set once every Redis has confirmed the subscription, so that callers can wait until alarms arrive.
        self.listening = threading.Event()
        self._stopping = threading.Event()
        self._deaf: set[str] = set()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        places = redis_clients.one_queue_per_redis(redis_clients.queue_names())
        self._deaf = set(places)
        for queue, redis in places.items():
            name = f"durable-alarms-{queue}"
            thread = threading.Thread(target=self._listen_always, args=(queue, redis), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _listen_always(self, queue: str, redis: Redis) -> None:
        while not self._stopping.is_set():
            try:
                self._listen(queue, redis)
            except (RedisError, OSError) as error:
                if redis_clients.is_away(error):
                    redis_clients.began(queue, error)
                    self.timer.bring_forward(clock.now())  # to poll from now on
                elif _log_this(queue):
                    logger.warning("alarms are not heard now, the sweep makes up for it: %s", error)
                self._stopping.wait(RETRY)
            except Exception:  # the thread must survive every error
                if _log_this(queue):
                    logger.exception("listening for alarms failed, trying again; the sweep makes up for it")
                self._stopping.wait(RETRY)

    def _listen(self, queue: str, redis: Redis) -> None:
        with redis.pubsub() as pubsub:  # type: ignore[no-untyped-call]  # redis-py's own
            pubsub.subscribe(notify.ALARMS)
            asked_at: float | None = time.monotonic()
            while not self._stopping.is_set():
                message = pubsub.get_message(timeout=0.5)
                if message is None:
                    asked_at = self._ask(pubsub, asked_at)
                    continue
                asked_at = None  # any message shows that Redis is there
                if message["type"] == "subscribe":
                    self._hear(queue)
                elif message["type"] == "message":
                    self._on_alarm(message["data"])

    @staticmethod
    def _ask(pubsub: PubSub, asked_at: float | None) -> float:
        """Ping Redis, since a host that vanishes closes no connection. Return when it was pinged."""
        if asked_at is None:
            pubsub.ping()
            return time.monotonic()
        if time.monotonic() - asked_at > SILENCE:
            raise RedisTimeoutError(f"no answer for {SILENCE:g} s")
        return asked_at

    def _hear(self, queue: str) -> None:
        _log_this.clear(queue)
        redis_clients.ended(queue)
        self._deaf.discard(queue)
        if not self._deaf:
            self.listening.set()
        self.timer.bring_forward(clock.now())  # for alarms published while this thread was not subscribed

    def _on_alarm(self, data: bytes) -> None:
        try:
            moment = datetime.fromisoformat(json.loads(data)["at"])
            if moment.utcoffset() is None:
                raise ValueError("a moment without an offset from UTC")
            self.timer.bring_forward(clock.to_utc(moment))
        except Exception as error:  # noqa: BLE001 - anyone may publish anything here: deep JSON is a RecursionError
            logger.warning(
                "an alarm of another shape is ignored: %s: %s", type(error).__name__, ascii(str(error)[:200])
            )


class Ticker(Periodic):
    """Ticks schedules less than 50 ms after their moments on an idle machine; in between it checks once a second."""

    def __init__(self, store: Store) -> None:
        super().__init__(store, "durable-ticker")

    def tick(self, now: datetime) -> datetime:
        """Tick all due schedules, and return the time of the next check."""
        for queue in self.store.sweep_slots(now, _NOTES_AT_ONCE)[0]:
            notify.notify(queue)
        while not self._stopping:
            due = next_look(now)
            if due is None or due > now:
                return now + LOOK_EVERY if due is None else min(due, now + LOOK_EVERY)
            if not tick_due(now):
                return now + _HELD_BY_OTHERS
            now = clock.now()
        return now + LOOK_EVERY
