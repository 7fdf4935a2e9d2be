"""The settings of `tests.faults`, with connections that are kept for ever, and limits small enough to wait for."""

from tests.faults.settings import *  # noqa: F403  # a settings module extends another one in this way
from tests.faults.settings import DATABASES as BASE_DATABASES
from tests.faults.settings import DURABLE as BASE_DURABLE

DATABASES = {"default": {**BASE_DATABASES["default"], "CONN_MAX_AGE": None}}
DURABLE = {**BASE_DURABLE, "HARD_TIMEOUT": 1.0}
