"""The reference in docs/cli.md is that of the parsers, and what they say is complete."""

import re
from pathlib import Path

import durable
from durable.cli.output import Exit
from durable.cli.subcommands import SUBCOMMANDS
from tests.cli.reference import DOCUMENT, documented, reference


def test_the_reference_is_not_stale() -> None:
    assert documented() == reference(), "write it again: python -m tests.cli.reference"


def test_every_subcommand_is_there_under_its_name() -> None:
    names = [each.name for each in SUBCOMMANDS]
    assert len(set(names)) == len(names)
    wanted = "list show why result start send ask recover cancel wake pause resume restart replay export prune doctor workers"
    assert set(wanted.split()) <= set(names)


def test_every_exit_status_is_documented() -> None:
    assert all(f"| {status.value} |" in DOCUMENT.read_text() for status in Exit)


def test_each_subcommand_that_a_text_names_is_one() -> None:
    texts = [each.read_text() for each in Path(durable.__file__).parent.rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"(?:`|manage\.py )durable ([a-z][a-z-]*)", text)}
    assert {"list", "doctor", "restored"} < named <= {name for each in SUBCOMMANDS for name in (each.name, each.alias)}
