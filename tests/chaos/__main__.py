"""Servers, workers, runs, faults, and the audit at the end.

`python -m tests.chaos --seconds 60 [--seed N] [--concurrency N] [--load runs|families|flow|limits]`
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from pathlib import Path

from project.servers import EmbeddedPostgres, EmbeddedRedis
from tests.e2e.workers import Workers

WORKERS = 3
PATIENCE = 90.0  # seconds that runs have to end in once the faults have ended


def main() -> int:
    """Cause chaos; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults are injected (default: 60)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults' kinds and moments (default: random)")
    parser.add_argument("--concurrency", type=int, default=1, help="runs that each worker passes at once (default: 1)")
    parser.add_argument(
        "--load", choices=("runs", "families", "flow", "limits"), default="runs", help="what is run (default: runs)"
    )
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 30)
    print(
        f"seed {seed}, {options.load}, faults for {options.seconds:g} s, concurrency {options.concurrency}", flush=True
    )
    with (
        EmbeddedPostgres(fsync=False) as postgres,
        EmbeddedRedis() as redis,
        tempfile.TemporaryDirectory(prefix="durable-chaos-") as directory,
    ):
        environment = {"DATABASE_URL": postgres.url, "REDIS_URL": redis.url, "LOG_LEVEL": "WARNING"}
        os.environ.update(environment, DJANGO_SETTINGS_MODULE="tests.chaos.settings")
        workers = Workers(
            WORKERS,
            dict(os.environ),
            Path(directory) / "workers.log",
            settings="tests.chaos.settings",
            options=[f"--concurrency={options.concurrency}"],
        )
        return _chaos(postgres, redis, workers, options.seconds, random.Random(seed), options.load)


def _chaos(
    postgres: EmbeddedPostgres, redis: EmbeddedRedis, workers: Workers, seconds: float, chance: random.Random, kind: str
) -> int:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections

    from tests.chaos.faults import Faults
    from tests.chaos.trials import trial_of

    call_command("migrate", verbosity=0)
    trial = trial_of(kind, chance)
    load = trial.load
    with workers:
        faults = Faults(chance, workers, postgres, redis)
        faults.refusals.install()
        load.begin_a_group()
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at:
            time.sleep(chance.uniform(0.2, 1.0))  # random moments are what is wanted here
            faults.strike()
            if trial.is_deadly and faults.kill_a_process():
                faults.injected["kill_beside_it"] += 1
            load.begin_a_group()
            load.send_some()
        faults.thaw(at_once=True)
        load.finish_sending()
        left = load.wait(PATIENCE)
        problems = [f"has not ended: {each}" for each in left] + trial.audit()
    connections.close_all()
    for kind, number in sorted(faults.injected.items()):
        print(f"{number:4} x {kind.replace('_', ' ')}")
    for error, number in faults.refusals.refused().items():
        print(f"{number:4} rows refused: {error.replace('_', ' ')}")
    print(f"{faults.injected.total()} faults injected, {trial.told()}")
    if problems:
        print(
            "\n".join(
                ["BROKEN:", *problems, "the workers' last words:", workers.log.read_text(errors="replace")[-5000:]]
            )
        )
        return 1
    print(f"survived all {faults.injected.total()}: {trial.promises}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
