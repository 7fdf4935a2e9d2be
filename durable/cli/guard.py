"""End a process group when this process's parent has ended: `python guard.py GROUP`, run as a file.

The parent holds the writing end of this process's standard input. That end closes however the parent ends; then the
group gets SIGTERM, and SIGKILL after a while. Standard library only: the module must start at once, and needs no
settings.
"""

from __future__ import annotations

import os
import signal
import sys
import time

GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def end_group(group: int) -> None:
    """End the processes of `group`, and wait until they are gone."""
    until = time.monotonic() + GRACE
    try:
        os.killpg(group, signal.SIGTERM)
        while time.monotonic() < until:
            time.sleep(0.05)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return  # no process is left; on some systems, only zombies


def main() -> None:
    """Wait for the end of standard input, then end the group."""
    for each in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(each, signal.SIG_IGN)
    while os.read(0, 4096):
        pass
    end_group(int(sys.argv[1]))


if __name__ == "__main__":
    main()
