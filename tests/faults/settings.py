"""The settings of the end-to-end tests, with the workflows that are attacked here."""

from tests.e2e.settings import *  # noqa: F403  # a settings module extends another one in this way
from tests.e2e.settings import INSTALLED_APPS as BASE_APPS

INSTALLED_APPS = [*BASE_APPS, "tests.faults"]
