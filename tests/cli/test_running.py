"""`durable running`: how many steps it is asked for."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Shell


@pytest.mark.parametrize("number", ["0", "201", "-1", "1.5", "many", "²", "9" * 5_000])
def test_a_number_that_is_none_of_them_is_refused_in_a_line(shell: Shell, number: str) -> None:
    done = shell("running", f"--limit={number}")
    assert done.status != 0
    assert "a whole number from 1 to 200 is expected" in done.err
    assert len(done.err) < 1_000


@pytest.mark.parametrize("number", ["1", "200"])
def test_the_bounds_are_accepted(shell: Shell, number: str) -> None:
    assert shell("running", f"--limit={number}", "-o", "json").status == 0
