"""The system check of tags: names that tell of people, whose values would stand in clear beside encrypted payloads.

Reads the code of the apps that bring workflows, as text: `using(tags={"email": ...})`, `ctx.tag(email=...)`. A name
that code makes when it runs is not found here; `durable.tag_hashes` logs it once when it is used.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from django.apps import apps
from django.core.checks import CheckMessage, Warning, register

from durable.conf import conf
from durable.core import registry
from durable.lint_checks import leaves_code_out
from durable.tag_hashes import HOW_TO_KEEP, tells_of_people

_LEFT_OUT: Final = frozenset({"migrations", "tests", "site-packages", "dist-packages", "node_modules", "__pycache__"})


@register("durable")
def check_tags(**_: object) -> list[CheckMessage]:
    """Warn of tags whose names tell of people, unless `DURABLE["TAGS"]` says how they are kept."""
    if leaves_code_out():
        return []
    found: dict[str, str] = {}
    for path in _files():
        for name, line in sorted(_names_in(path), key=lambda each: each[1]):
            if tells_of_people(name) and name not in conf.TAGS:
                found.setdefault(name, f"{path}:{line}")
    return [
        Warning(
            f'{place}: the value of the tag "{name}" is kept in clear, whatever the codec does with payloads.',
            hint=HOW_TO_KEEP.format(name=name),
            id="durable.W090",
        )
        for name, place in found.items()
    ]


def _files() -> Iterator[Path]:
    """Yield the files of the apps that bring workflows, and files with workflows that are of no app."""
    from durable.inspection.workflow_code import files_of_workflows  # a worker has no use for it

    with_workflows = files_of_workflows()
    known = {path.resolve() for path in with_workflows}
    configs = {apps.get_containing_app_config(str(each.function.__module__)) for each in registry.all()}
    roots = {Path(config.path).resolve() for config in configs if config is not None}
    mine = {root for root in roots if any(path.is_relative_to(root) for path in known)}
    for path in sorted({*known, *(path for root in mine for path in _code_of(root))}):
        yield path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _code_of(root: Path) -> Iterator[Path]:
    """Yield the files of an app, without its tests and migrations, and without what is installed below it."""
    for folder, folders, files in os.walk(root):
        folders[:] = [each for each in folders if each not in _LEFT_OUT and not each.startswith(".")]
        yield from (Path(folder, each) for each in files if each.endswith(".py") and not each.startswith("test_"))


def _names_in(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the names of tags that the code gives as constants, and their lines."""
    try:
        text = path.read_text(encoding="utf-8")
        if "tags=" not in text and ".tag(" not in text:
            return
        tree = ast.parse(text)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return  # Python or `durable lint` says so
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if node.func.attr == "tag":
            for each in node.keywords:
                yield from _keys_of(each.value) if each.arg is None else [(each.arg, each.value.lineno)]
        elif node.func.attr == "using":
            for each in node.keywords:
                if each.arg == "tags":
                    yield from _keys_of(each.value)


def _keys_of(node: ast.expr) -> Iterator[tuple[str, int]]:
    if isinstance(node, ast.Dict):
        for key in node.keys:
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.value, key.lineno
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict":
        yield from ((each.arg, each.value.lineno) for each in node.keywords if each.arg is not None)
