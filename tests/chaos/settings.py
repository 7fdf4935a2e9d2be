"""The settings of the end-to-end tests, with the workflows of the chaos.

Crashes are the workers' here, not the runs'.
"""

from tests.e2e.settings import *  # noqa: F403  # a settings module extends another one in this way
from tests.e2e.settings import DURABLE as BASE_DURABLE
from tests.e2e.settings import INSTALLED_APPS as BASE_APPS

INSTALLED_APPS = [*BASE_APPS, "tests.chaos", "tests.chaos.families", "tests.chaos.flow", "tests.chaos.limits"]
DURABLE = {
    **BASE_DURABLE,
    "MAX_CRASHES": 1_000_000,
    "LIMITS": {
        "carrier": {"rate": "5/s"},
        "chaos-step": {"at_once": 1},
        "chaos-edited": {"at_once": 2},
        "chaos-rate": {"rate": "20/s"},
    },
}
