"""A fork whose parent is this process's parent, so that that one waits for it and signals it as its own child.

Linux alone has it. The flag is not offered by `os.fork`, so the system call is made here, with what Python and the C
library do around their own.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from typing import Final

_CLONE_PARENT: Final = 0x00008000
_CLONE_CHILD_CLEARTID: Final = 0x00200000
_CLONE_CHILD_SETTID: Final = 0x01000000
_PR_SET_NAME: Final = 15
_PR_GET_TID_ADDRESS: Final = 40
_CALLS: Final = {"x86_64": 56, "aarch64": 220}  # the number of `clone`


def is_possible() -> bool:
    """Whether this machine has what `clone_as_sibling` needs."""
    return sys.platform == "linux" and platform.machine() in _CALLS and _tid_address() is not None


def clone_as_sibling() -> int:
    """Fork.

    Return 0 in the new process and its pid in this one, of which it is a sibling. This process has one thread.
    """
    address = _tid_address()
    assert address is not None
    flags = _CLONE_PARENT | _CLONE_CHILD_SETTID | _CLONE_CHILD_CLEARTID | signal.SIGCHLD
    machine = platform.machine()
    # the new thread id goes where the C library keeps it; the order of the last two arguments differs
    last = (address, 0) if machine == "x86_64" else (0, address)
    python = ctypes.pythonapi
    library = ctypes.PyDLL(None, use_errno=True)  # keeps the interpreter's lock
    call = library.syscall
    call.argtypes = [ctypes.c_long] * 6
    call.restype = ctypes.c_long
    python.PyOS_BeforeFork()
    pid = int(call(_CALLS[machine], flags, 0, 0, *last))
    if pid == 0:
        python.PyOS_AfterFork_Child()
        return 0
    number = ctypes.get_errno()
    python.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(number, os.strerror(number))
    return pid


def set_name(name: str) -> None:
    """Set what `ps` and `/proc` call this process."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.create_string_buffer(name.encode()), 0, 0, 0)


def _tid_address() -> int | None:
    """Where the C library keeps the id of this thread; None if the kernel does not tell."""
    address = ctypes.c_void_p()
    done = ctypes.CDLL(None).prctl(_PR_GET_TID_ADDRESS, ctypes.byref(address), 0, 0, 0)
    return address.value if done == 0 else None
