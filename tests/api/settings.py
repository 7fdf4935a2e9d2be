"""The project's settings with the workflows of these tests: what their workers run with."""

from project.settings import *  # noqa: F403  # a settings module extends another one in this way
from project.settings import INSTALLED_APPS as BASE_APPS

INSTALLED_APPS = [*BASE_APPS, "tests.api"]
DURABLE = {"LEASE": 2.0, "SWEEP_INTERVAL": 1.0}
