"""`manage.py durable_dev`: Django's development server and a worker in one terminal, both with the current code."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Any

from django.core.management.base import CommandError, CommandParser
from redis.exceptions import RedisError

from durable.cli.development import CodeWatch, WebServer
from durable.conf import conf
from durable.management.commands import durable_worker
from durable.notifier import channel, redis_clients

WITHOUT_REDIS = 'DURABLE["REDIS"] is False'


class Command(durable_worker.Command):
    """Run the development server and one worker, and end both."""

    name = "durable_dev"
    help = (
        "For development: runs Django's development server and one worker, starts both again when the code changes, and "
        "prints each step in a line. Ctrl+C or SIGTERM ends both."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("addrport", nargs="?", default="", help="port, or address:port, as of runserver")
        parser.add_argument(
            "--concurrency", type=int, default=1, metavar="N", help="runs that the worker passes at once (default: 1)"
        )
        parser.add_argument("--noreload", action="store_true", help="keep the code that both were started with")

    def handle(self, *args: Any, **options: Any) -> None:
        from durable.worker.supervisor import Supervisor, command_line, worker_command

        if options["concurrency"] < 1:
            raise CommandError(f"--concurrency must be at least 1, not {options['concurrency']}")
        queues = self._queues([]) if conf.REDIS else []
        self._say(self._how())
        reloads = not options["noreload"]
        general = [f"--{each}={options[each]}" for each in ("settings", "pythonpath") if options[each]]
        general += [f"--{each.replace('_', '-')}" for each in ("force_color", "no_color") if options[each]]
        web = [*general, *([] if reloads else ["--noreload"]), *([options["addrport"]] if options["addrport"] else [])]
        worker = worker_command(queues, self._inherited({**options, "verbosity": max(2, options["verbosity"])}))
        os.environ["PYTHONUNBUFFERED"] = "1"  # in a pipe or file, the lines of both come as they are printed
        try:
            with WebServer(command_line("runserver", *web)) as server:
                self._await_migrations(lambda: server.status is not None)
                self._say_wrong_routines()
                supervisor = Supervisor(
                    worker, 1, say=self._say, reloads=reloads, ends_with=lambda: self._ended(server)
                )
                with CodeWatch(supervisor.code_changed) if reloads else nullcontext():
                    status = supervisor.run()
        except KeyboardInterrupt:  # before any worker was started
            status = 0
        sys.exit(status)

    def _ended(self, server: WebServer) -> int | None:
        if (status := server.status) is None:
            return None
        self._say(f"the web server has ended, status {status}: ending the worker")
        return status

    def _how(self) -> str:
        """Return how the worker learns of due runs, and what to do if it cannot."""
        if not conf.REDIS:
            return f"without Redis ({WITHOUT_REDIS}): {channel.in_words()}"
        try:
            for redis in redis_clients.one_queue_per_redis(redis_clients.queue_names()).values():
                redis.ping()
        except (RedisError, OSError) as error:
            return (
                f"Redis does not answer ({type(error).__name__}: {error}), and runs wait for it: start it, or set "
                'DURABLE = {"REDIS": False} to work without'
            )
        return "with Redis"
