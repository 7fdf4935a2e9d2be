"""`python -m tests.support.forkserver MODULE ...`: run a program as `__main__` whose own child processes are forked."""

import runpy
import sys

from tests.support.forkserver import client

if __name__ == "__main__":
    del sys.argv[0]
    client.install()
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    finally:
        client.remove()
