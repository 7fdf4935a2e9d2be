"""`python -m tests.tools.limited_api`: 1,000 runs of 20 tenants call an API that allows 500 requests a minute, and 4 at
once of each tenant, while their workers are killed. It takes two minutes and a half.

Each run has a moment in the rate "490/min": requests reach an API sooner or later after their moments, and an API that
counts a sliding minute counts that. Exits with 1, and says why, if the API has seen more, if a tenant was left behind,
or if anything is left at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import threading
import time
from collections import Counter

from tests.e2e.workers import Workers
from tests.tools.servers import own_servers, seeded

WORKERS = 2
PATIENCE = 300.0  # seconds beside what the rate takes


def main() -> int:
    """Try; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.limited_api", description=__doc__)
    parser.add_argument("--runs", type=int, default=1_000)
    parser.add_argument("--tenants", type=int, default=20)
    parser.add_argument("--rate", default="490/min", help="of the runs (default: 490/min)")
    parser.add_argument("--allowed", type=int, default=500, help="requests a minute (default: 500)")
    parser.add_argument("--at-once", type=int, default=4, help="requests of a tenant (default: 4)")
    parser.add_argument("--busy", type=float, default=0.5, help="seconds that the API takes (default: 0.5)")
    parser.add_argument("--kills", type=int, default=20, help="of workers (default: 20)")
    options = seeded(parser)
    settings = "tests.tools.limited_api.settings"
    limits = {"LIMITED_API_RATE": options.rate, "LIMITED_API_AT_ONCE": str(options.at_once)}
    with own_servers(settings, **limits) as directory:
        log = directory / "workers.log"
        workers = Workers(WORKERS, dict(os.environ), log, settings=settings, options=["--concurrency=8"])
        return _try(workers, options)


def _try(workers: Workers, options: argparse.Namespace) -> int:
    from durable.core.limits.rates import Rate
    from durable.models import Run
    from tests.tools.limited_api.api import Api, broken_promises, install, moments, served
    from tests.tools.limited_api.workflows import customer

    install()
    rate, dice, strike = Rate.of(options.rate), random.Random(options.seed), threading.Lock()
    deadly = {(number + 1) * options.runs // (options.kills + 1) for number in range(options.kills)}

    def kill_at(number: int) -> None:
        """Kill a worker while it, or another one, waits for this request."""
        if number in deadly:
            with strike:
                workers.kill_one(dice)

    api = Api(options.busy, kill_at)
    tenants = [f"tenant-{number % options.tenants}" for number in range(options.runs)]
    with served(api) as url:
        began_at = time.time()
        for tenant, number in Counter(tenants).items():  # one tenant after the other: their shares take turns
            customer.using(share=tenant).start_many([(url, tenant)] * number)
        takes = options.runs * rate.spacing / 1e9
        deadline = time.monotonic() + takes + PATIENCE
        with workers:
            while Run.objects.open().exists() and time.monotonic() < deadline:
                time.sleep(0.2)
        problems = broken_promises(api, rate, options.at_once, began_at, Counter(tenants))
    in_a_minute = api.most_in(60.0)
    if in_a_minute > options.allowed:
        problems.append(f"{in_a_minute} requests within a minute, and {options.allowed} are allowed")
    half = Counter(tenant for _, tenant in api.arrivals[: len(api.arrivals) // 2])
    is_large = options.runs >= 50 * options.tenants  # in a small one, a kill puts off a good part of a tenant's runs
    if is_large and (missing := set(tenants) - set(half)):
        problems.append(f"of the first half of the requests, none was of {', '.join(sorted(missing))}")
    print(
        f"{len(api.arrivals)} requests for {options.runs} runs in {api.arrivals[-1][0] - began_at:.1f} s, "
        f"{workers.kills} kills, {len(moments())} moments; at most {in_a_minute} within a minute, "
        f"{max(api.most.values())} at once of a tenant; of the first half, a tenant had {min(half.values())} to "
        f"{max(half.values())}"
    )
    if problems:
        print("\n".join(["BROKEN:", *problems, workers.log.read_text(errors="replace")[-5_000:]]))
        return 1
    print("never more than allowed, nothing left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
