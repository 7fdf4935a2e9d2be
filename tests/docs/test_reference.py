"""The reference leaves no public name out, and what the pages link to is there."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from pydoc import locate
from typing import Any, Final
from urllib.parse import unquote

import pytest

import durable
from durable import testing
from durable.core.transitions import TRANSITIONS
from durable.operations import ALLOWED
from tests.docs.pages import PAGES, ROOT, SITE

_LINK: Final = re.compile(r"(?<!\!)\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_TOC: Final = re.compile(r"^```\{toctree\}\n(?::.*\n)*\n(?P<entries>[^`]*)```", re.MULTILINE)

_DIRECTIVE: Final = re.compile(
    r"^\.\. auto(?:class|exception|function|module):: (?P<name>[\w.]+).*\n(?P<options>(?:   :.*\n)*)", re.MULTILINE
)

#: What a project's own code for operators uses of `durable.operations`.
OPERATORS: Final = ("Actor", "HistoryDifference", "HistoryEntry", "ReplayPlan", "RunInfo", "acting_as")


def test_every_public_name_is_in_the_reference() -> None:
    text = (SITE / "reference" / "api.md").read_text()
    public = [f"durable.{name}" for name in durable.__all__]
    public += ["durable.errors", *(f"durable.operations.{name}" for name in OPERATORS)]
    assert [name for name in public if not re.search(rf":: {re.escape(name)}\b", text)] == []


def test_every_public_name_for_tests_is_in_the_reference() -> None:
    text = (SITE / "reference" / "testing.md").read_text()
    assert [name for name in testing.__all__ if name not in text] == []


def test_what_the_reference_has_is_described() -> None:
    """Sphinx leaves out a member without a docstring, also one that the page names."""
    found = [each for page in (SITE / "reference").glob("*.md") for each in _documented(page.read_text())]
    names = {name for name, _ in found}
    assert names >= {"durable.Handle.recover", "durable.models.run.RunQuerySet.failed", "durable.operations.recover"}
    assert [name for name, description in found if not description] == []


def _documented(text: str) -> Iterator[tuple[str, str | None]]:
    """Yield the names that the directives of a page document, each with its docstring."""
    for directive in _DIRECTIVE.finditer(text):
        documented: Any = locate(directive["name"])
        yield directive["name"], documented.__doc__
        options = dict(re.findall(r":([\w-]+): *(.*)", directive["options"]))
        if "members" not in options:
            continue
        is_module = inspect.ismodule(documented)
        own = documented.__all__ if is_module else vars(documented)
        left_out = options.get("exclude-members", "").split(", ")
        for name in options["members"].split(", ") if options["members"] else own:
            member = getattr(documented, name) if is_module else inspect.getattr_static(documented, name)
            member = getattr(member, "__func__", member)  # of a class method
            is_described = inspect.isfunction(member) or isinstance(member, property | type)
            if is_described and not name.startswith("_") and name not in left_out:
                yield f"{directive['name']}.{name}", member.__doc__


def test_every_page_is_in_the_table_of_contents() -> None:
    text = (SITE / "index.md").read_text()
    listed = [entry for found in _TOC.finditer(text) for entry in found["entries"].split()]
    pages = [name.removeprefix("docs/").removesuffix(".md") for name in PAGES if name.startswith("docs/")]
    assert sorted(listed) == sorted(each for each in pages if each != "index")


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """Also where the repository is read without being built; links to other sites are not followed."""
    page = ROOT / name
    broken = [
        target
        for target in _LINK.findall(page.read_text())
        if not target.startswith(("https://", "http://", "#")) and not _leads_somewhere(page, target)
    ]
    assert broken == []


def _leads_somewhere(page: Path, target: str) -> bool:
    path, _, anchor = unquote(target).partition("#")
    found = page.parent / path
    return found.exists() and (not anchor or anchor in _anchors(found))


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


def test_the_states_and_verbs_of_the_guide_are_those_of_the_code() -> None:
    text = (SITE / "guides" / "state.md").read_text()
    transitions_of = {
        "pause": ("paused_at_once",),
        "resume": ("resumed", "rollback_resumed"),
        "cancel": ("cancelled_at_once", "cancelled_with_rollback"),
        "recover": ("recovered", "rollback_recovered"),
        "replay": ("replayed",),
        "wake": ("woken",),
        "settle": ("settled",),
        "move": ("requeued",),
    }
    documented: dict[str, set[tuple[str, str]]] = {}
    for verb, starts, ends in re.findall(r"^    (\w+) +([a-z_, ]+?) +--> (.+)$", text, re.MULTILINE):
        for start in starts.split(", "):
            led = [start] if ends.startswith("the same") else ends.split(", ")
            documented.setdefault(verb, set()).update((start, end) for end in led)
    assert documented == {
        verb: {(start, end) for name in names for start, end in TRANSITIONS[name].items()}
        for verb, names in transitions_of.items()
    }
    assert {verb: {start for start, _ in documented[verb]} for verb in ALLOWED} == {
        verb: set(states) for verb, states in ALLOWED.items()
    }
