"""The compiled modules that the processes of a session share. Loaded first, with `-p tests.bytecode`.

Owns which modules are cached. With `PYTHONDONTWRITEBYTECODE`, which many images of containers set, every process
compiles every module that it imports. That is two thirds of the start of a command of Django, and a session starts
hundreds of them. So pytest's own processes write the cache until the tests are collected, and children read it.

Must not let a child write it: Python recognises a changed module by its size and by the second of its last change, and
a test may change a module twice within one.
"""

import compileall
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).resolve().parent.parent
_BY_CHILDREN: Final = (
    "durable",
    "project",
    "tests/benchmarks",
    "tests/chaos",
)  # with modules that only children import

_is_unwanted: Final = sys.dont_write_bytecode
sys.dont_write_bytecode = False


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Cache what was imported before this module was, and what no process of pytest imports."""
    if not _is_unwanted:
        return
    for module in list(sys.modules.values()):
        loader = getattr(module, "__loader__", None)
        if isinstance(loader, SourceFileLoader):
            loader.get_code(loader.name)  # writes the cache unless it is up to date
    for package in _BY_CHILDREN:
        compileall.compile_dir(_ROOT / package, quiet=2)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    sys.dont_write_bytecode = _is_unwanted
