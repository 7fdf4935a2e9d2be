"""`durable skills`: the skill is copied whole, and nothing that somebody has edited is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from durable.cli.code_checks import SKILLS
from tests.cli.conftest import Shell

OURS = (SKILLS / "durable" / "SKILL.md").read_text()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_it_is_written_where_agents_look(shell: Shell, project: Path) -> None:
    done = shell("skills")
    assert (done.status, done.err) == (0, ".agents/skills/durable/SKILL.md: written\n")
    assert (project / ".agents/skills/durable/SKILL.md").read_text() == OURS
    assert shell("skills").err == ".agents/skills/durable/SKILL.md: is up to date\n"


def test_another_folder_is_named(shell: Shell, project: Path) -> None:
    assert shell("skills", "elsewhere/deep").status == 0
    assert (project / "elsewhere/deep/durable/SKILL.md").read_text() == OURS


def test_what_was_edited_is_kept_until_it_is_given_up(shell: Shell, project: Path) -> None:
    shell("skills")
    copy = project / ".agents/skills/durable/SKILL.md"
    copy.write_text("mine")
    done = shell("skills")
    assert done.status == 1
    assert "--force" in done.err
    assert copy.read_text() == "mine"
    assert shell("skills", "--force").status == 0
    assert copy.read_text() == OURS


def test_a_file_in_the_way_is_no_skill_of_ours(shell: Shell, project: Path) -> None:
    (project / ".agents").write_text("a file")
    done = shell("skills")
    assert done.status == 1
    assert ".agents" in done.err
    assert (project / ".agents").read_text() == "a file"


def test_it_says_when_it_is_to_be_used() -> None:
    head = OURS.split("---\n")[1]
    assert head.startswith("name: durable\ndescription:")
    assert len(OURS.splitlines()) <= 250, "an agent reads all of it each time"
