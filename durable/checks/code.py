"""Checks of the project's code: workflows (by the linter), limits, schedules, tags and renames.

No finding of the linter is an error to Django: an error would keep `migrate` and `runserver` from starting. Hints are
left to `durable lint`.

Only `check --database` and `migrate` compare the schedules of the code with their rows.

Names of tags are read from the code of the apps that bring workflows, as text: `using(tags={"email": ...})`,
`ctx.tag(email=...)`. A name that code makes when it runs is not found here; `durable.tag_hashes` logs it once when it
is used.

Renames are read from the project's migrations, applied or not, and no database is asked. `migrate` runs that check
before it renames anything.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import combinations, islice
from pathlib import Path
from typing import Final

from django.apps import apps
from django.core.checks import CheckMessage, Error, Tags, Warning, register
from django.db.migrations.exceptions import NodeNotFoundError

from durable.conf import conf
from durable.core import registry
from durable.core.names.renames import Alias, Aliases, AliasKind
from durable.core.registry import WorkflowDefinition
from durable.declared_limits import undefined
from durable.operations.ends import CallAtEnd
from durable.tag_hashes import HOW_TO_KEEP, tells_of_people

_DURABLE: Final = Path(__file__).parents[1]
_is_left_out: ContextVar[bool] = ContextVar("_is_left_out", default=False)


@contextmanager
def without_code() -> Iterator[None]:
    """Within the block, leave out the checks that read files of code and migrations.

    A worker and each of its processes would otherwise read all of them at the start, and repeat the warnings.
    """
    token = _is_left_out.set(True)
    try:
        yield
    finally:
        _is_left_out.reset(token)


def leaves_code_out() -> bool:
    """Return True within a block of `without_code`."""
    return _is_left_out.get()


@register("durable")
def check_code(**_: object) -> list[CheckMessage]:
    """Check the code of the workflows that this project brings itself."""
    if leaves_code_out():
        return []
    from durable.inspection.workflow_code import files_of_workflows
    from durable.lint import lint

    return [
        Warning(f"{each.path}:{each.line}: {each.message} ({each.workflow})", hint=each.fix, id=f"durable.{each.id}")
        for each in lint(map(Path, files_of_workflows()))
        if each.level != "hint"
    ]


@register("durable")
def check_limits(**_: object) -> list[CheckMessage]:
    """Check that the settings or a workflow define the limits that workflows name."""
    return [
        Error(
            f'The workflow "{definition.name}" names the limit "{name}", and nobody says how many slots it has.',
            hint=f'Write DURABLE = {{"LIMITS": {{"{name}": {{"at_once": 4}}}}}}, or Limit("{name}", at_once=4).',
            id="durable.E015",
        )
        for definition in registry.all()
        for name in undefined(definition.limits)
    ]


@register("durable")
def check_ends(**_: object) -> list[CheckMessage]:
    """Check that the functions that workflows name as their `on_end` can be imported and called."""
    if leaves_code_out():
        return []
    found: list[CheckMessage] = []
    for definition in registry.all():
        function = definition.on_end
        if not isinstance(function, CallAtEnd):
            continue
        try:
            function.function()
        except (ImportError, TypeError) as error:
            message = f'The workflow "{definition.name}" names {function.name} as its on_end: {error}.'
            hint = "Without it none of its runs can end. Correct the name, or give the function itself."
            found.append(Error(message, hint=hint, id="durable.E025"))
    return found


@register(Tags.database)
def check_schedules(databases: Sequence[str] | None = None, **_: object) -> list[CheckMessage]:
    """Check that the rows of schedules are as the code declares them."""
    if conf.DATABASE not in (databases or ()):
        return []
    from durable.operations.schedules.sync import differences, has_table  # only a process that checks databases

    if not has_table(conf.DATABASE):
        return []
    found = differences()
    if not found:
        return []
    message = f"Schedules differ from the code: {'; '.join(map(str, found[:10]))}."
    hint = "With the newest code, `migrate` and `durable schedules --sync` make the rows as the code says."
    return [Warning(message, hint=hint, id="durable.W089")]


_LEFT_OUT: Final = frozenset({"migrations", "tests", "site-packages", "dist-packages", "node_modules", "__pycache__"})


@register("durable")
def check_tags(**_: object) -> list[CheckMessage]:
    """Warn about tags whose names suggest personal data, unless `DURABLE["TAGS"]` says how to store them."""
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
    """Yield the files of apps with workflows, and files with workflows outside of apps."""
    from durable.inspection.workflow_code import files_of_workflows  # a worker has no use for it

    with_workflows = files_of_workflows()
    known = {path.resolve() for path in with_workflows}
    configs = {apps.get_containing_app_config(str(each.function.__module__)) for each in registry.all()}
    roots = {Path(config.path).resolve() for config in configs if config is not None}
    mine = {root for root in roots if any(path.is_relative_to(root) for path in known)}
    for path in sorted({*known, *(path for root in mine for path in _code_of(root))}):
        yield path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _code_of(root: Path) -> Iterator[Path]:
    """Yield the files of an app, without its tests, its migrations and packages installed below it."""
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


_ID = "durable.E016"


@register("durable")
def check_renamed_workflows(**_: object) -> list[CheckMessage]:
    """Check that no two functions have names of the same workflow."""
    if leaves_code_out():
        return []
    from durable.renames.operations import all_migrations, renames_of_migrations

    try:
        migrations = all_migrations()
    except (NodeNotFoundError, ValueError):  # an app is missing, such as auth: Django names it itself
        return []
    renames = renames_of_migrations(migrations)
    try:
        names = Aliases(each for each in renames if isinstance(each, Alias) and each.kind is AliasKind.WORKFLOW)
    except ValueError as error:
        hint = "Correct the migration that is not applied anywhere yet."
        return [Error(f"The migrations of the project contradict each other: {error}.", hint=hint, id=_ID)]
    hint = (
        "Keep one of the functions: it executes the runs of both names. If one is to be another workflow, give it a name that "
        "no migration has renamed."
    )
    by_oldest: dict[str, list[WorkflowDefinition]] = {}
    for each in registry.all():
        by_oldest.setdefault(names.first(each.name), []).append(each)
    return [
        Error(
            f'A migration has made "{one.name}" and "{other.name}" names of one workflow, and the code has two: '
            f"{registry.source_location(one)} and {registry.source_location(other)}.",
            hint=hint,
            id=_ID,
        )
        for definitions in by_oldest.values()
        for one, other in combinations(definitions, 2)
        if not registry.is_same_function(one, other)
    ]


_MOST_TEMPLATES: Final = 5_000


@register(Tags.templates)
def check_progress_has_an_address(**_: object) -> list[CheckMessage]:
    """Check that the addresses of bars are included, if a template of the project has `{% durable_progress %}`."""
    if leaves_code_out():
        return []
    from durable.hooks.progress import HOW_TO_INCLUDE, is_included

    found = next(_templates_with("{% durable_progress "), None)
    if found is None or is_included():
        return []
    text = (
        f"{found} has {{% durable_progress %}}, and its bar has no address to ask, so that the page cannot be rendered."
    )
    return [Error(text, hint=f"{HOW_TO_INCLUDE[0].upper()}{HOW_TO_INCLUDE[1:]}.", id="durable.E103")]


def _templates_with(text: str) -> Iterator[Path]:
    """Yield the project's HTML templates that contain the text; durable's own and those of packages are left out."""
    from django.template import engines

    folders = dict.fromkeys(Path(each) for engine in engines.all() for each in getattr(engine, "template_dirs", ()))
    own = [each for each in folders if "site-packages" not in each.parts and _DURABLE not in each.parents]
    files = (path for folder in own for path in sorted(folder.rglob("*.html")))
    for path in islice(files, _MOST_TEMPLATES):
        if text in path.read_text(encoding="utf-8", errors="replace"):
            yield path
