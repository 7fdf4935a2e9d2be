"""`manage.py durable_worker`: workers, the timer and the sweep in one command.

`durable.worker.supervisor` does the work.
"""

from __future__ import annotations

import contextlib
import difflib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections

from durable.checks.code import without_code
from durable.cli.development import CodeWatch
from durable.conf import conf
from durable.execution.connections import close_connections
from durable.metrics import is_installed
from durable.notifier import redis_clients

if TYPE_CHECKING:
    from durable.worker.health import Health

LOOK_EVERY = 1.0  # seconds between two checks for missing migrations
POOL = 4  # connections in a psycopg pool without a configured size


class Command(BaseCommand):
    """Serve RQ queues, and wake sleeping runs."""

    name = "durable_worker"
    help = (
        "Runs durable's workers: serves the RQ queues (all of RQ_QUEUES unless named, in that order), wakes "
        "runs at their deadlines, and searches for due runs that no worker was notified of. SIGTERM and SIGINT release "
        "runs at their next operation; a second signal ends at once."
    )
    requires_system_checks = ["durable"]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queues", nargs="*", help="RQ queues, the most urgent first")
        parser.add_argument("--processes", type=int, default=1, help="worker processes (default: 1)")
        parser.add_argument(
            "--concurrency",
            type=int,
            default=1,
            metavar="N",
            help="runs that each process executes at once, in threads; for steps that wait for others (default: 1)",
        )
        parser.add_argument(
            "--metrics-port", type=int, help="serve Prometheus metrics of all its processes at this port"
        )
        parser.add_argument(
            "--metrics-address", default="127.0.0.1", help="where to listen for that (default: 127.0.0.1)"
        )
        parser.add_argument("--health-port", type=int, help="answer probes, /livez and /readyz, at this port")
        parser.add_argument(
            "--health-address", default="127.0.0.1", help="where to listen for that (default: 127.0.0.1)"
        )
        parser.add_argument(
            "--reload", action="store_true", help="start the workers again when the code changes; for development"
        )
        parser.add_argument("--as-child", action="store_true", help="for internal use: be one of the processes")
        parser.add_argument(
            "--embedded", action="store_true", help="for internal use: end when standard input is closed"
        )

    def check(self, *args: Any, **options: Any) -> None:
        with without_code():
            super().check(*args, **options)

    def handle(self, *args: Any, **options: Any) -> None:
        from durable.cli import console
        from durable.worker.health import Health
        from durable.worker.process import run_worker
        from durable.worker.supervisor import Supervisor, worker_command

        queues = self._queues(options["queues"])
        if options["as_child"]:
            level = "INFO" if options["verbosity"] > 2 else "WARNING"
            if options["verbosity"] > 1:
                console.install(sys.stdout, self.style)
            run_worker(
                queues,
                say=self._say,
                concurrency=options["concurrency"],
                logging_level=level,
                serves_all=not options["queues"],
            )
            return
        if options["embedded"]:
            from durable.worker.embedded import end_with_parent

            end_with_parent()
        for option in ("processes", "concurrency"):
            if options[option] < 1:
                raise CommandError(f"--{option} must be at least 1, not {options[option]}")
        at_once = f", {options['concurrency']} runs at once in each" if options["concurrency"] > 1 else ""
        # Without Redis, an empty list means all queues.
        named = queues if conf.REDIS or options["queues"] else []
        self._say(f"serving {', '.join(named) or 'every queue'} with {options['processes']} process(es){at_once}")
        for line in _too_small_pools(options["concurrency"]):
            self._say(line)
        health = Health()
        with self._probes(health, options["health_port"], options["health_address"]):
            self._await_migrations(health=health)
            self._refuse_unsuitable_database()
            self._say_wrong_routines()
            with self._metrics(options["metrics_port"], options["metrics_address"]):
                command = worker_command(named, self._inherited(options))
                supervisor = Supervisor(command, options["processes"], say=self._say, reloads=options["reload"])
                health.supervisor = supervisor
                with CodeWatch(supervisor.code_changed) if options["reload"] else nullcontext():
                    status = supervisor.run()
        sys.exit(status)

    @contextmanager
    def _probes(self, health: Health, port: int | None, address: str) -> Iterator[None]:
        """Answer probes in the block, if a port is given."""
        if port is None:
            yield
            return
        from durable.worker.health import served

        with ExitStack() as stack:
            try:
                chosen = stack.enter_context(served(health, port, address))
            except OSError as error:
                raise CommandError(f"cannot answer probes at {address}:{port}: {error}") from error
            self._say(f"probes at http://{address}:{chosen}/livez and /readyz")
            yield

    @contextmanager
    def _metrics(self, port: int | None, address: str) -> Iterator[None]:
        """Serve the metrics of the workers that are started in the block, if a port is given."""
        if port is None:
            yield
            return
        if not is_installed():
            raise CommandError('--metrics-port needs prometheus_client: install "durable-django[metrics]"')
        from durable.metrics.exposition import served, shared_directory

        with ExitStack() as stack:
            stack.enter_context(shared_directory())
            try:
                chosen = stack.enter_context(served(port, address))
            except OSError as error:
                raise CommandError(f"cannot serve metrics at {address}:{port}: {error}") from error
            self._say(f"metrics at http://{address}:{chosen}/metrics")
            yield

    def _queues(self, wanted: list[str]) -> list[str]:
        known = redis_clients.queue_names()
        if not conf.REDIS:  # without RQ, a queue may have any name
            return list(dict.fromkeys(wanted or known))
        if not known:
            raise CommandError("settings.RQ_QUEUES names no queues; see the documentation of django-rq")
        for name in wanted:
            if name not in known:
                nearest = difflib.get_close_matches(name, known, n=1)
                advice = f"did you mean {nearest[0]!r}? " if nearest else ""
                raise CommandError(f"there is no queue {name!r}; {advice}RQ_QUEUES has {', '.join(known)}")
        queues = list(dict.fromkeys(wanted or known))
        places = redis_clients.one_queue_per_redis(queues)
        if len(places) > 1:
            raise CommandError(
                f"one worker serves queues of one Redis, and {', '.join(places)} have different ones; "
                "name the queues, and run a durable_worker for each Redis"
            )
        return queues

    def _await_migrations(self, is_over: Callable[[], bool] = lambda: False, health: Health | None = None) -> None:
        """Wait for migrations if a deploy starts workers first: without them each job would fail."""
        from durable.inspection.database import how_to_migrate
        from durable.worker.health import Health

        health = health or Health()
        health.missing_migrations = self._missing_migrations()
        if not health.missing_migrations:
            return
        missing = ", ".join(health.missing_migrations)
        self._say(f"migrations are missing: {missing}. Run: {how_to_migrate()}; this waits for them")
        while health.missing_migrations:
            if is_over():
                return
            time.sleep(LOOK_EVERY)
            health.missing_migrations = self._missing_migrations()
        self._say("migrations are applied")

    def _refuse_unsuitable_database(self) -> None:
        """Raise CommandError if runs would not be safe with this database, or with a cache in front of it."""
        from durable.checks.database import unsuitable

        with contextlib.suppress(Error):  # the database does not answer: the workers report that, and wait for it
            if why := unsuitable():
                raise CommandError(why)
        close_connections()

    def _say_wrong_routines(self) -> None:
        """Report functions and triggers that differ.

        Workers go on: most runs may not need them, and `migrate` repairs them.
        """
        from durable.inspection.database import how_to_migrate, wrong_routines

        with contextlib.suppress(Error):
            if wrong := wrong_routines():
                self._say(f"the database is not as its migrations made it: {'; '.join(wrong)}. Run: {how_to_migrate()}")
        close_connections()

    def _missing_migrations(self) -> list[str]:
        from durable.inspection.database import missing_migrations

        try:
            return missing_migrations()
        except Error:
            return []  # the database does not answer: the workers report that, and wait for it
        finally:
            close_connections()

    def _inherited(self, options: dict[str, Any]) -> list[str]:
        """Return the general options that a child process must get again."""
        given = [f"--verbosity={options['verbosity']}", f"--concurrency={options['concurrency']}"]
        given += [f"--{each}={options[each]}" for each in ("settings", "pythonpath") if options[each]]
        given += [f"--{each.replace('_', '-')}" for each in ("force_color", "no_color") if options[each]]
        return [*given, "--skip-checks"]

    def _say(self, line: str) -> None:
        self.stdout.write(f"{self.name}: {line}")
        self.stdout.flush()


def _too_small_pools(concurrency: int) -> Iterator[str]:
    """Warn about Django's connection pools that are too small: a process with this many threads could deadlock."""
    for alias, config in connections.settings.items():
        pool = config["OPTIONS"].get("pool")
        if not pool:
            continue
        given = pool if isinstance(pool, dict) else {}
        size = given.get("max_size") or given.get("min_size", POOL)
        wanted = concurrency + (2 if alias == conf.DATABASE else 0)
        if size < wanted:
            yield (
                f'the pool of DATABASES["{alias}"] has {size} connections, and a process with --concurrency {concurrency} '
                f'uses up to {wanted}, besides those of branches: set OPTIONS["pool"]["max_size"], or passes wait for '
                "each other"
            )
