"""The projects of the README and of the tutorial, made as the pages say: `manage.py check` warns of nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Final

import pytest
from django.core.management import call_command

from tests.docs.pages import TUTORIAL, language, page
from tests.support.child_path import child_path

_FILE: Final = re.compile(r"# (?P<path>[\w/]+\.py)\b")


def blocks_until_settings(name: str) -> dict[str, str]:
    """The first text of each file of the page, up to the first settings, which are the last of them."""
    found: dict[str, str] = {}
    for example in page(name).examples():
        if language(example) == "python" and (named := _FILE.match(text := textwrap.dedent(example.parsed))):
            found.setdefault(named["path"].rpartition("/")[2], text)
            if named["path"].endswith("settings.py"):
                break
    assert "settings.py" in found, "this page has no settings"
    return found


@pytest.mark.e2e
@pytest.mark.parametrize(
    ("name", "app", "prose"),
    [("README.md", "shop", 'INSTALLED_APPS += ["durable", "shop"]\n'), (TUTORIAL, "orders", "")],
)
def test_a_project_as_the_page_says_gets_no_warning(tmp_path: Path, name: str, app: str, prose: str) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "DATABASE_"))}
    environment["PYTHONPATH"] = child_path()  # so that the commands are forked

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    call_command("startproject", "mysite", str(tmp_path))
    (tmp_path / app).mkdir()
    call_command("startapp", app, str(tmp_path / app))
    files = blocks_until_settings(name)
    with (tmp_path / "mysite/settings.py").open("a") as settings:
        settings.write(f"{prose}{files.pop('settings.py')}")
    for path, text in files.items():
        (tmp_path / app / path).write_text(text)
    assert "no issues" in run("manage.py", "check", "--fail-level", "WARNING")
    assert "WARNING" not in run("manage.py", "migrate")
