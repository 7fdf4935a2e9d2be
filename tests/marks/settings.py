"""The settings of the worker processes of these tests: their workflows, short sweeps, and a mark as the test says."""

import os

from tests.e2e.settings import *  # noqa: F403  # a settings module extends another one in this way
from tests.e2e.settings import DATABASES
from tests.e2e.settings import INSTALLED_APPS as BASE_APPS

DATABASES["default"]["CONN_MAX_AGE"] = int(os.environ.get("MARKS_CONN_MAX_AGE", "60"))
INSTALLED_APPS = [*BASE_APPS, "tests.marks"]
DURABLE = {
    "LEASE": 2.0,
    "SWEEP_INTERVAL": 0.5,
    "POLL_INTERVAL": 0.5,
    "REDIS": os.environ.get("MARKS_REDIS", "1") == "1",
    "MARK": os.environ.get("MARKS_FILE", ""),
}
