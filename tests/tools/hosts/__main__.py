"""`python -m tests.tools.hosts [--only kill,switchover,redis] [--lease SECONDS]`

Exits with 1 if a promise was broken, with 2 if a program is not installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from tests.tools.hosts.cluster import Cluster
from tests.tools.hosts.servers import missing_packages


def main() -> int:
    """Try the scenarios; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.tools.hosts", description=__doc__)
    parser.add_argument("--only", default="", help="scenarios, with commas between them (default: all)")
    parser.add_argument("--lease", type=float, default=30.0, help="DURABLE['LEASE'] in seconds (default: 30)")
    parser.add_argument(
        "--logs", type=Path, help="keep the ledger, and the logs of servers and workers, in this directory"
    )
    options = parser.parse_args()
    if missing := missing_packages():
        print(f"these packages are missing: apt-get install {' '.join(missing)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="durable-hosts-ledger-") as directory, Cluster() as cluster:
        os.environ.update(cluster.environment("pooled"))
        os.environ.update(DJANGO_SETTINGS_MODULE="tests.tools.hosts.settings", LOG_LEVEL="WARNING")
        os.environ.update(HOSTS_LEDGER=str(Path(directory) / "ledger"), DURABLE_LEASE=str(options.lease))
        try:
            return _try(cluster, options.lease, Path(directory), {each for each in options.only.split(",") if each})
        finally:
            if options.logs is not None:
                cluster.keep_logs(options.logs)
                shutil.copytree(directory, options.logs, dirs_exist_ok=True)


def _try(cluster: Cluster, lease: float, directory: Path, only: set[str]) -> int:
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections

    from tests.tools.hosts.scenarios import SCENARIOS
    from tests.tools.hosts.study import Study, problems, table

    if unknown := only - {each.name for each in SCENARIOS}:
        print(
            f"no scenario is called {', '.join(sorted(unknown))}; there are {', '.join(each.name for each in SCENARIOS)}"
        )
        return 2
    call_command("migrate", verbosity=0)
    study = Study(cluster, lease, directory)
    outcomes = []
    with study.at_work():
        for scenario in SCENARIOS:
            if only and scenario.name not in only:
                continue
            print(f"{scenario.name}: {scenario.told}", flush=True)
            outcomes.append(study.try_out(scenario))
            print(table(outcomes[-1:]), problems(outcomes[-1:]), sep="\n", flush=True)
    connections.close_all()
    print(table(outcomes))
    if broken := problems(outcomes):
        print("BROKEN:", broken, "the workers' last words:", study.log.read_text(errors="replace")[-5000:], sep="\n")
        return 1
    print("every promise was kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
