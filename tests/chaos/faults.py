"""The faults: each strikes processes or servers that this program started itself, and is counted."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import psutil
import psycopg
from redis import Redis

from project.servers import EmbeddedPostgres, EmbeddedRedis
from tests.chaos.refusals import Refusals
from tests.e2e.workers import Workers

FREEZE: Final = 3.0  # seconds; longer than the lease
PAUSE: Final = 1500  # milliseconds in which Redis does not answer


class Faults:
    """What can go wrong around workers. `strike` does one thing at random."""

    def __init__(
        self, chance: random.Random, workers: Workers, postgres: EmbeddedPostgres, redis: EmbeddedRedis
    ) -> None:
        self.chance = chance
        self.workers = workers
        self.postgres = postgres
        self.redis = redis
        self.refusals = Refusals(postgres.url)
        self.injected: Counter[str] = Counter()
        self._frozen: list[tuple[float, psutil.Process]] = []
        self._kinds: list[Callable[[], bool]] = [
            self.kill_a_process,
            self.kill_a_worker,
            self.terminate_a_worker,
            self.freeze_a_process,
            self.restart_postgres,
            self.cut_connections,
            self.flush_redis,
            self.restart_redis,
            self.pause_redis,
            self.fill_the_disk,
            self.fail_serialization,
            self.report_deadlocks,
        ]

    def strike(self) -> None:
        """One fault; each kind once before any comes again."""
        least = min(self.injected[kind.__name__] for kind in self._kinds)
        kind = self.chance.choice([each for each in self._kinds if self.injected[each.__name__] == least])
        if kind():
            self.injected[kind.__name__] += 1
        self.thaw()

    def thaw(self, *, at_once: bool = False) -> None:
        """Let frozen processes go on that have been stopped past their leases."""
        due = [each for each in self._frozen if at_once or time.monotonic() >= each[0]]
        for each in due:
            self._frozen.remove(each)
            with contextlib.suppress(psutil.NoSuchProcess):
                each[1].send_signal(signal.SIGCONT)

    # -- the kinds; each says whether it found something to strike

    def kill_a_process(self) -> bool:
        children = self.workers.children
        if not children:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            self.chance.choice(children).kill()
        return True

    def kill_a_worker(self) -> bool:
        self.workers.kill_one(self.chance)
        return True

    def terminate_a_worker(self) -> bool:
        self.thaw(at_once=True)  # a frozen process would not hear of it
        self.workers.terminate_one(self.chance)
        return True

    def freeze_a_process(self) -> bool:
        children = self.workers.children
        if not children:
            return False
        chosen = self.chance.choice(children)
        with contextlib.suppress(psutil.NoSuchProcess):
            chosen.send_signal(signal.SIGSTOP)
            self._frozen.append((time.monotonic() + FREEZE, chosen))
        return True

    def restart_postgres(self) -> bool:
        self.postgres.restart("immediate")
        return True

    def cut_connections(self) -> bool:
        with psycopg.connect(self.postgres.url, autocommit=True) as connection:
            found = connection.execute(
                "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            ).fetchone()
        return bool(found and found[0])

    def flush_redis(self) -> bool:
        self.redis.flush()
        return True

    def restart_redis(self) -> bool:
        self.redis.restart("kill")
        return True

    def pause_redis(self) -> bool:
        with Redis.from_url(self.redis.url) as client:
            client.client_pause(PAUSE, all=True)
        return True

    def fill_the_disk(self) -> bool:
        self.refusals.begin("disk_full", self.chance)
        return True

    def fail_serialization(self) -> bool:
        self.refusals.begin("serialization_failure", self.chance)
        return True

    def report_deadlocks(self) -> bool:
        self.refusals.begin("deadlock", self.chance)
        return True
