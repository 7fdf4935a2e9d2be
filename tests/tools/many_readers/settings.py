"""The project, with the readers' page and the writing workflow."""

from project.settings import *  # noqa: F403

INSTALLED_APPS = [*INSTALLED_APPS, "tests.tools.many_readers"]  # noqa: F405
ROOT_URLCONF = "tests.tools.many_readers.site"
MIDDLEWARE = []
