"""What a release says of itself: its extras, its version, the links of its description, and the workflows that make it.

What it contains, and whether it can be installed, is checked by `.ci/check_release.py`.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import durable

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PROJECT: dict[str, Any] = PYPROJECT["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
SITE: str = PROJECT["urls"]["Documentation"]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORKFLOWS = ROOT / ".github" / "workflows"


def named_in(requirement: str) -> list[str]:
    """The extras in `durable-django[rest,cli]`."""
    found = re.fullmatch(r"durable-django\[([\w,-]+)\]", requirement)
    return found[1].split(",") if found else []


def test_the_extra_of_all_has_each_other_one() -> None:
    (of_all,) = EXTRAS["all"]
    aliases = {name for name, needed in EXTRAS.items() if name != "all" and any(map(named_in, needed))}
    assert sorted(named_in(of_all)) == sorted(EXTRAS.keys() - aliases - {"all"})


def test_the_readme_lists_the_extras_and_what_they_bring() -> None:
    rows = re.findall(r"^\| ((?:`[\w-]+`|[ ()])+) \| ([^|]+) \|", README, re.MULTILINE)
    listed = {name: brings for names, brings in rows for name in re.findall(r"`([\w-]+)`", names)}
    assert listed.keys() == EXTRAS.keys()
    for name in EXTRAS.keys() - {"all", "rest"}:
        wanted = [re.split(r"[>=]", each)[0] for each in EXTRAS[name]]
        assert listed[name].lower().replace("django rest framework", "djangorestframework").split(", ") == wanted


def test_each_extra_that_is_named_somewhere_is_one() -> None:
    files = [*(ROOT / "durable").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    named = [
        each for file in files for each in re.findall(r"durable-django\[[\w,-]+\]", file.read_text(encoding="utf-8"))
    ]
    assert len(named) > 10
    assert {name for each in named for name in named_in(each)} <= EXTRAS.keys()


def test_the_version_is_said_once() -> None:
    assert PROJECT["version"] == durable.__version__
    (own,) = [
        each for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"] if each["name"] == PROJECT["name"]
    ]
    assert own["version"] == durable.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"^## {re.escape(durable.__version__)}\b", changelog, re.MULTILINE)


def test_the_links_of_the_description_lead_to_pages_of_the_site() -> None:
    """They are those of the README, as the metadata have them."""
    text = README
    for each in PYPROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(each["pattern"], each["replacement"], text)
    links = [link for link in re.findall(r"\]\(([^)#]+)", text) if link.startswith(SITE)]
    assert len(links) > 30
    assert [link for link in links if not is_built(link.removeprefix(SITE))] == []


def is_built(path: str) -> bool:
    """Whether the site has it: a page for each file, and each picture that a page shows."""
    if path.startswith("_images/"):
        name = path.removeprefix("_images/")
        return any(f"images/{name})" in page.read_text(encoding="utf-8") for page in (ROOT / "docs").rglob("*.md"))
    return (ROOT / "docs" / path).with_suffix(".md").is_file()


def workflow(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((WORKFLOWS / name).read_text(encoding="utf-8"))
    return found


@pytest.mark.parametrize("name", ["ci.yml", "release.yml"])
def test_a_workflow_gives_no_rights_and_uses_nothing_that_may_change(name: str) -> None:
    text = (WORKFLOWS / name).read_text(encoding="utf-8")
    assert "secrets" not in text
    assert workflow(name)["permissions"] == {}
    uses = re.findall(r"uses: (.+)", text)
    assert uses
    assert [each for each in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d.*|\./[\w./]+", each)] == []


def test_ci_is_the_program_that_developers_have() -> None:
    (job,) = workflow("ci.yml")["jobs"].values()
    assert job["permissions"] == {"contents": "read"}
    assert job["steps"][-1] == {"run": ".ci/run"}


def test_a_release_is_published_without_a_token_after_everything_was_checked() -> None:
    release = workflow("release.yml")
    assert re.search(r'^on:\n  push:\n    tags: \["v\*"\]\n\n', (WORKFLOWS / "release.yml").read_text(), re.MULTILINE)
    publish = release["jobs"].pop("publish")
    assert set(publish["needs"]) == release["jobs"].keys() == {"ci", "build"}
    assert publish["environment"] == "release"
    assert publish["permissions"]["id-token"] == "write"
    for job in release["jobs"].values():
        assert job["permissions"] == {"contents": "read"}
    used = [each["uses"].partition("@")[0] for each in publish["steps"]]
    assert used == ["actions/download-artifact", "actions/attest", "pypa/gh-action-pypi-publish"]
    assert not any("run" in each or "password" in each.get("with", {}) for each in publish["steps"])


def test_how_to_report_a_weakness_is_where_it_is_looked_for() -> None:
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert "Report a vulnerability" in text
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / link).is_file()
