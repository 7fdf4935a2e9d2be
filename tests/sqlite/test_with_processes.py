"""The half of the round on SQLite whose tests start the most processes."""

from pathlib import Path

import pytest

from tests.sqlite.session import WITH_PROCESSES, Record, passes_on_sqlite


@pytest.mark.slow
def test_what_uses_the_database_passes_on_sqlite_too(tmp_path: Path, record_property: Record) -> None:
    passes_on_sqlite(record_property, tmp_path, " and ".join(WITH_PROCESSES), *WITH_PROCESSES)
