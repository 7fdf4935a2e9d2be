"""The actor at the command line: the user named with `--as`, else the user of the operating system."""

from __future__ import annotations

import getpass
import os

from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.core.management.base import CommandError

from durable.cli.exit_codes import Exit
from durable.operations.audit import Actor


def shell_actor(user_name: str | None) -> Actor:
    """Return the actor. With a user, that user's permissions apply; without one, every action is allowed.

    Raises CommandError for a user that does not exist or is not active.
    """
    label = _system_name()
    if user_name is None:
        return Actor("cli", label=label)
    users = get_user_model()._default_manager
    try:
        user = users.get_by_natural_key(user_name)
    except ObjectDoesNotExist:
        raise CommandError(f"--as: there is no user {user_name!r}", returncode=Exit.USAGE) from None
    if not user.is_active:
        raise CommandError(f"--as: the user {user_name!r} is not active", returncode=Exit.USAGE)
    return Actor("cli", user=user, label=label)


def _system_name() -> str:
    """Return the operating system's name for its user; the number if there is no name, as in many containers.

    The environment is not used: LOGNAME may be set to any name.
    """
    if not hasattr(os, "getuid"):  # Windows
        return getpass.getuser()
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
