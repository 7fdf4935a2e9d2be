"""Lints files: reads each, finds its workflows, notes their facts, asks each rule, and reports the findings.

A comment such as `# durable: allow[W101] reason` silences a finding on its line.
Nothing is imported or run. Whatever is in a file, the answer is a list of findings.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
from argparse import ArgumentTypeError
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from durable.lint.facts import Facts, Finding
from durable.lint.modules import (
    Env,
    Function,
    Module,
    Project,
    UnreadableError,
    parsed,
    python_files,
    text_of,
    workflow_decorator,
    workflow_name,
)
from durable.lint.reader import Reader
from durable.lint.rules import RULES

_COMMENT: Final = re.compile(r"#.*?\bdurable:\s*allow\b\s*(?:\[(?P<ids>[^\]]*)\])?(?P<reason>[^#]*)")


@dataclass(frozen=True, slots=True)
class Allowance:
    """A comment. `lines` are those of the statement it stands beside; of the next one if it stands alone."""

    line: int
    ids: tuple[str, ...]
    reason: str
    lines: range


def allowances(text: str, tree: ast.Module) -> list[Allowance]:
    """Return the comments of a file that silence findings, those that lack something included."""
    if "durable:" not in text:
        return []
    return list(_allowances(text, sorted(_statements(tree))))


def _allowances(text: str, statements: Sequence[tuple[int, int]]) -> Iterator[Allowance]:
    lines = text.split("\n")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or (found := _COMMENT.search(token.string)) is None:
            continue
        line, column = token.start
        is_alone = not lines[line - 1][:column].strip()
        spoken_of = _lines_around(_next_code(lines, line) if is_alone else line, statements)
        ids = tuple(each.strip().removeprefix("durable.") for each in (found["ids"] or "").split(",") if each.strip())
        yield Allowance(line, ids, found["reason"].strip(" :-\t"), spoken_of)


def _statements(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """Yield the first and the last line of each statement; of one that has others in it, those of its head."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt | ast.excepthandler | ast.match_case):
            continue
        body = getattr(node, "body", None)
        first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
        if isinstance(body, list) and body:
            yield first, max(first, body[0].lineno - 1)
        elif not isinstance(node, ast.match_case):
            yield first, node.end_lineno or first


def _lines_around(line: int, statements: Sequence[tuple[int, int]]) -> range:
    """Return the lines of the innermost statement that has the line."""
    found = range(line, line + 1)
    for first, last in statements:
        if first > line:
            break
        if line <= last:
            found = range(first, last + 1)
    return found


def _next_code(lines: Sequence[str], line: int) -> int:
    following = line + 1
    while following <= len(lines) and lines[following - 1].strip().startswith("#"):
        following += 1
    return following


def problem_of(allowance: Allowance, known: Collection[str]) -> str | None:
    """Return what a comment lacks; None if it silences something."""
    if not allowance.ids:
        return "The comment names no finding."
    unknown = [each for each in allowance.ids if each not in known]
    if unknown:
        return f"There is no finding {', '.join(unknown)}."
    return None if allowance.reason else "The comment gives no reason."


#: The ids of findings about files, which no rule of workflows makes.
UNREADABLE: Final = "W100"
ALLOW: Final = "W190"

#: The ids of all findings.
IDS: Final = frozenset({UNREADABLE, ALLOW, *(each.id for each in RULES)})

FunctionDef: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef


def known_id(text: str) -> str:
    """Return the id of a finding, as an option has it. Raises ArgumentTypeError for an id that no finding has."""
    if text not in IDS:
        raise ArgumentTypeError(f"there is no finding {text!r}; there are {', '.join(sorted(IDS))}")
    return text


@dataclass(frozen=True, slots=True)
class _Found:
    name: str
    function: Function
    outer: Env


def lint(paths: Iterable[Path]) -> list[Finding]:
    """Return the findings of all workflows in the files at `paths`, by path and line.

    Directories are searched for files of Python. A finding in a helper is one of each workflow that calls it.
    """
    files = list(python_files(paths))
    project = Project({os.path.realpath(path): path for path in files})
    found: dict[tuple[str, str, int, str], Finding] = {}
    modules: list[Module] = []
    for path in files:
        try:
            text = text_of(path)
            if "durable" not in text:
                parsed(text)  # and forget the tree: most files of a project have no workflow
                continue
            module = project.module(path)
        except UnreadableError as error:
            each = _unreadable(str(path), error.line, "", error)
            found[each.id, each.path, each.line, ""] = each
            continue
        modules.append(module)
        for each in _findings(module):
            found.setdefault((each.id, each.path, each.line, each.workflow), each)
    return sorted(_allowed(found.values(), project, modules), key=attrgetter("path", "line", "id", "workflow"))


def _unreadable(path: str, line: int, workflow: str, error: UnreadableError) -> Finding:
    return Finding(
        id=UNREADABLE, path=path, line=line, workflow=workflow, level="error", message=str(error), fix=error.fix
    )


def _findings(module: Module) -> Iterator[Finding]:
    try:
        workflows = list(_workflows(module))
    except RecursionError:
        yield _too_deep(module, module.tree, "")
        return
    for each in workflows:
        node = each.function.node
        facts = Facts(name=each.name, module=module, function=node, is_async=isinstance(node, ast.AsyncFunctionDef))
        try:
            Reader(facts).read(each.function, each.outer)
            for rule in RULES:
                for report in rule.check(facts):
                    yield Finding(
                        id=rule.id,
                        path=report.module.shown_path,
                        line=report.line,
                        workflow=each.name,
                        level=rule.level,
                        message=report.message,
                        fix=report.fix or rule.fix,
                    )
        except RecursionError:
            yield _too_deep(module, node, each.name)


def _too_deep(module: Module, node: ast.AST, workflow: str) -> Finding:
    error = UnreadableError(
        "The code is nested too deeply to be read.", "Split the expression, or move data out of the code."
    )
    return _unreadable(module.shown_path, getattr(node, "lineno", 1), workflow, error)


def _workflows(module: Module) -> Iterator[_Found]:
    """Yield the functions of a module that are workflows, those within functions and classes included."""
    waiting: list[tuple[ast.AST, tuple[FunctionDef, ...]]] = [(module.tree, ())]
    while waiting:
        node, around = waiting.pop()
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                continue  # expressions hold no definitions
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                decorator = workflow_decorator(child, module) if child.decorator_list else None
                if decorator is not None:
                    outer = Env(module, None, None)
                    for each in around:
                        outer = _local(each, module, outer)
                    yield _Found(workflow_name(child, decorator, module), Function(module, child, outer), outer)
                waiting.append((child, (*around, child)))
            elif hasattr(child, "body"):
                waiting.append((child, around))


def _local(node: FunctionDef, module: Module, outer: Env) -> Env:
    """Return the names of a function around workflows: its functions are known, the rest is not."""
    env = Env(module, node, outer)
    for each in ast.walk(node):
        if isinstance(each, ast.arg):
            env.names.setdefault(each.arg, None)
        elif isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            env.names.setdefault(each.id, None)
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            function = Function(module, statement, env)
            env.names[statement.name] = None if workflow_decorator(statement, module) is not None else function
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                bound = alias.asname or alias.name.partition(".")[0]
                env.names[bound] = module.imported(statement, bound)
    return env


def _allowed(found: Iterable[Finding], project: Project, modules: Sequence[Module]) -> Iterator[Finding]:
    """Yield the findings that no comment silences, and one for each comment that silences nothing."""
    by_path: dict[str, list[Allowance]] = {}
    known = {each.id for each in RULES}
    for finding in found:
        if finding.path not in by_path:
            by_path[finding.path] = _allowances_of(project.shown(finding.path))
        if not any(_covers(each, finding, known) for each in by_path[finding.path]):
            yield finding
    for module in modules:
        for allowance in by_path.get(module.shown_path) or _allowances_of(module):
            problem = problem_of(allowance, known)
            if problem is not None:
                yield Finding(
                    id=ALLOW,
                    path=module.shown_path,
                    line=allowance.line,
                    workflow="",
                    level="warning",
                    message=problem,
                    fix="Write # durable: allow[W101] and the reason, on the line of the finding or above it.",
                )


def _allowances_of(module: Module | None) -> list[Allowance]:
    return [] if module is None else allowances(module.text, module.tree)


def _covers(allowance: Allowance, finding: Finding, known: set[str]) -> bool:
    return (
        finding.id in allowance.ids
        and finding.line in allowance.lines
        and problem_of(allowance, known) is None
        and finding.id != UNREADABLE
    )


def as_lines(findings: Iterable[Finding]) -> Iterator[str]:
    """Yield three lines for each finding: what and where, why, and what to write. One of a file has no reason."""
    why = {rule.id: rule.why for rule in RULES}
    for each in findings:
        workflow = f" ({each.workflow})" if each.workflow else ""
        yield f"{each.path}:{each.line}: {each.level} {each.id}: {each.message}{workflow}"
        if each.id in why:
            yield f"    {why[each.id]}"
        yield f"    {each.fix}"


_LEVELS: Final = {"error": "error", "warning": "warning", "hint": "note"}


def as_sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return a log of one run of the linter."""
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.fix},
            "defaultConfiguration": {"level": _LEVELS[rule.level]},
        }
        for rule in RULES
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "durable lint", "rules": rules}},
                "results": [_result(each) for each in findings],
            }
        ],
    }


def _result(finding: Finding) -> dict[str, Any]:
    return {
        "ruleId": finding.id,
        "level": _LEVELS[finding.level],
        "message": {"text": f"{finding.message} {finding.fix}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _address(finding.path)},
                    "region": {"startLine": finding.line},
                },
                **({"logicalLocations": [{"fullyQualifiedName": finding.workflow}]} if finding.workflow else {}),
            }
        ],
    }


def _address(path: str) -> str:
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix(), errors="surrogateescape")
