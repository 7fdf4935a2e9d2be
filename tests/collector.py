"""The collector of cyclic garbage in the processes of a session. Loaded with `-p tests.collector`.

Owns when it works. The imports and the 13,000 collected tests are millions of objects that live to the end: the
collector would look through them again and again, while they are made and afterwards.
"""

import gc
from typing import Final

import pytest

from tests.division import tests_run_elsewhere

#: Objects that are made before the young ones are looked through, and how often that comes before the next generation.
#: Python's own 700 and 10 cost a test of pages a twentieth of its CPU time.
THRESHOLDS: Final = (20_000, 20, 20)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Leave alone what imports and collection make."""
    if not tests_run_elsewhere(early_config):
        gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Collect from here on, and only what the tests make."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    gc.enable()
