"""Who acts at the command line: the user named with `--as`, else whoever the system says it is."""

from __future__ import annotations

import getpass
import os

from django.contrib.auth import get_user_model
from django.core.exceptions import ObjectDoesNotExist
from django.core.management.base import CommandError

from durable.cli.exit_codes import Exit
from durable.operations.audit import Actor

__all__ = ["actor"]


def actor(user_name: str | None) -> Actor:
    """The actor. A user has the user's permissions; without one, whoever may run commands here may do anything.

    Raises CommandError for a user that there is not, or that is not active.
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
    """The system's name for who runs this; its number where it has no name, as in many containers.

    Not what the environment says: LOGNAME may be set to anybody's name.
    """
    if not hasattr(os, "getuid"):  # Windows
        return getpass.getuser()
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
