"""The settings of the end-to-end tests, with the limits of the API."""

import os

from tests.e2e.settings import *  # noqa: F403  # a settings module extends another one in this way
from tests.e2e.settings import DURABLE as BASE_DURABLE
from tests.e2e.settings import INSTALLED_APPS as BASE_APPS

INSTALLED_APPS = [*BASE_APPS, "tests.tools.limited_api"]
DURABLE = {
    **BASE_DURABLE,
    "MAX_CRASHES": 1_000_000,
    "LIMITS": {
        "api": {"rate": os.environ.get("LIMITED_API_RATE", "490/min")},
        "api-tenant": {"at_once": int(os.environ.get("LIMITED_API_AT_ONCE", "4"))},
    },
}
