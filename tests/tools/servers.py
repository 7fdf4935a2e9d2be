"""What a program has to itself: a PostgreSQL with durable's tables, a Redis, a directory, and the seed of its dice."""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from project.servers import EmbeddedPostgres, EmbeddedRedis


@contextmanager
def own_servers(settings: str, **environment: str) -> Iterator[Path]:
    """Inside, the environment names the servers, and Django is set up; yield a directory that is removed at the end."""
    with (
        EmbeddedPostgres(fsync=False) as postgres,
        EmbeddedRedis() as redis,
        tempfile.TemporaryDirectory(prefix="durable-tools-") as directory,
    ):
        os.environ.update(DATABASE_URL=postgres.url, REDIS_URL=redis.url, LOG_LEVEL="WARNING")
        os.environ.update(DJANGO_SETTINGS_MODULE=settings, **environment)
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        try:
            yield Path(directory)
        finally:
            connections.close_all()


def seeded(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the options, with `--seed` among them; print the seed, with which the same chance comes again."""
    parser.add_argument("--seed", type=int, default=None, help="which worker each kill strikes (default: random)")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {options.seed}", flush=True)
    return options
