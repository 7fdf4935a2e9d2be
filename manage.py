#!/usr/bin/env python
"""The project's command line: Django's own, with the project's settings."""

import os
import sys

DEVELOPMENT = (
    "demo",
    "durable_dev",
    "runserver",
)  # commands that serve on a loopback address, with DEBUG unless it is set


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
    if sys.argv[1:] and sys.argv[1] in DEVELOPMENT:
        os.environ.setdefault("DEBUG", "1")
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
