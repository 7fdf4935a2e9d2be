"""The project's settings with the tests' workflows, a short lease and frequent sweeps."""

import os
from typing import Any

from project.settings import *  # noqa: F403 - all of them, and these
from project.settings import INSTALLED_APPS

INSTALLED_APPS = [*INSTALLED_APPS, "tests.support.flows"]
DURABLE: dict[str, Any] = {  # type: ignore[no-redef]  # replaced as a whole
    "LEASE": float(os.environ.get("FLOWS_LEASE", "2")),
    "SWEEP_INTERVAL": float(os.environ.get("FLOWS_SWEEP", "1")),
    "OTHER_JOBS": ["tests.support.flows.workflows."],
}
