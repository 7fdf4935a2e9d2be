"""The other half of the round on SQLite: every folder that is not in the first one."""

from pathlib import Path

import pytest

from tests.sqlite.session import WITH_PROCESSES, Record, passes_on_sqlite


@pytest.mark.slow
def test_what_uses_the_database_passes_on_sqlite_too(tmp_path: Path, record_property: Record) -> None:
    passes_on_sqlite(record_property, tmp_path, "other tests", *(f"--ignore={each}" for each in WITH_PROCESSES))
