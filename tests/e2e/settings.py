"""The project's settings with the workflows of these tests: what the worker processes run with."""

import os

from project.settings import *  # noqa: F403  # a settings module extends another one in this way
from project.settings import INSTALLED_APPS as BASE_APPS
from project.settings import SHOP as BASE_SHOP

INSTALLED_APPS = [*BASE_APPS, "tests.e2e"]
DURABLE = {
    "LEASE": float(os.environ.get("E2E_LEASE", "2.0")),
    "LIMITS": {
        "carrier": {"rate": "5/s"},
        "faults-all": {"at_once": 3},
        "faults-rate": {"rate": "1/s"},
        "faults-slot": {"at_once": 1},
    },
    "SWEEP_INTERVAL": 1.0,
    "MAX_CRASHES": int(os.environ.get("E2E_MAX_CRASHES", "5")),
}
SHOP = {**BASE_SHOP, "APPROVAL_DEADLINE": "10 minutes", "COOL_OFF": "200 ms", "MAIL_PAUSE": "150 ms"}
