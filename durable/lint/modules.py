"""The project as text: the files to read, their modules, and the values that names and expressions stand for.

Nothing is imported or run. A value is None if reading the code does not tell it. A module is read when a name leads
there, if its file lies below the project.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

MAX_BYTES: Final = 5_000_000

#: Directories of other people's code and of caches.
_PASSED_BY: Final = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


class UnreadableError(Exception):
    """A file that cannot be read as Python; the text says why, `line` where."""

    def __init__(self, message: str, fix: str, line: int = 1) -> None:
        super().__init__(message)
        self.fix = fix
        self.line = line


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files to read, each once: files as given, and all `*.py` below directories.

    Links to directories are not followed, so that no circle of them is endless. Directories that begin with a dot are
    passed by, and so are installed packages.
    """
    seen: set[str] = set()
    for path in paths:
        is_directory = os.path.isdir(path)  # noqa: PTH112  # it raises nothing
        for each in _below(path) if is_directory else (path,):
            real = os.path.realpath(each)
            if real not in seen:
                seen.add(real)
                yield each


def _below(directory: Path) -> Iterator[Path]:
    unreadable: list[Path] = []
    for parent, directories, names in os.walk(directory, onerror=lambda error: unreadable.append(Path(error.filename))):
        directories[:] = sorted(
            each
            for each in directories
            if each not in _PASSED_BY and not each.startswith(".") and not _is_environment(Path(parent) / each)
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(parent) / name
    yield from unreadable


def _is_environment(directory: Path) -> bool:
    return os.path.exists(directory / "pyvenv.cfg")  # noqa: PTH110  # it raises nothing


def text_of(path: Path) -> str:
    """Return the text of a file of Python, decoded as it declares. Raises UnreadableError."""
    try:
        if path.is_dir():
            raise UnreadableError(
                "The directory cannot be read.", "Give the linter a directory that it may read, or leave it out."
            )
        if not path.is_file():
            raise UnreadableError(
                "This is not a file that can be read.", "Give a file of Python or a directory of them."
            )
        if path.stat().st_size > MAX_BYTES:
            raise UnreadableError(
                f"The file has more than {MAX_BYTES:,} bytes.", "Move data out of the code, or leave the file out."
            )
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UnreadableError(
            f"The file cannot be read: {reason}.", "Give the linter a file that it may read, or leave it out."
        ) from None
    if b"\0" in raw:
        raise UnreadableError("The file contains null bytes.", "Save it as text, in UTF-8.")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except (SyntaxError, LookupError, UnicodeError) as error:
        raise UnreadableError(
            f"The file's encoding is not what it declares: {error}.",
            "Save it in UTF-8, or declare its encoding in the first line: # -*- coding: latin-1 -*-",
        ) from None


def parsed(text: str) -> ast.Module:
    """Return the tree of a text. Raises UnreadableError."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise UnreadableError(
            f"The file is not valid Python: {error.msg}.",
            "Correct the syntax. The linter reads the syntax of the Python it runs on.",
            error.lineno or 1,
        ) from None
    except (RecursionError, MemoryError):
        raise UnreadableError(
            "The code is nested too deeply to be read.", "Split the expression, or move data out of the code."
        ) from None
    except ValueError as error:
        raise UnreadableError(f"The file is not valid Python: {error}.", "Save it as text, in UTF-8.") from None


FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Value: TypeAlias = Any  # one of the classes below, or None


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value that differs from pass to pass: its kind, and the expression that made it."""

    kind: str
    text: str
    line: int


class Result(NamedTuple):
    """The value of an expression, and what in it differs from pass to pass."""

    value: Value
    origins: frozenset[Origin] = frozenset()


NOTHING: Final = Result(None)


@dataclass(eq=False, slots=True)
class Scope:
    """A scope of names: the root, an iteration, a branch or a block."""

    kind: Literal["root", "iteration", "branch", "block"]
    parent: Scope | None = None


class Env:
    """The names of one function while it is read; those of the functions around it are looked up in `parent`."""

    __slots__ = ("module", "names", "node", "origins", "parent")

    def __init__(self, module: Module, node: ast.AST | None, parent: Env | None) -> None:
        self.module = module
        self.node = node
        self.parent = parent
        self.names: dict[str, Value] = {}
        self.origins: dict[str, frozenset[Origin]] = {}

    def owner(self, name: str) -> Env | None:
        """Return the function's names that have `name`, None for a global or unknown one."""
        here: Env | None = self
        while here is not None:
            if name in here.names:
                return here
            here = here.parent
        return None


@dataclass(frozen=True, slots=True)
class Context:
    """A context of a scope."""

    scope: Scope
    is_async: bool


@dataclass(frozen=True, slots=True)
class Queue:
    """`ctx.queue`."""

    context: Context


@dataclass(frozen=True, slots=True)
class Operator:
    """A method of a context, a queue, a child or a message that performs an operation."""

    kind: str
    context: Context


@dataclass(frozen=True, slots=True)
class Child:
    """The value of `ctx.start_child`."""

    context: Context


@dataclass(frozen=True, slots=True)
class Message:
    """The value of `ctx.queue.next`."""

    context: Context


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """A function of the project. `given` are arguments that it has already: `self`, and those of `partial`."""

    module: Module
    node: FunctionNode
    env: Env | None
    given: tuple[Value, ...] = ()
    is_method: bool = False
    is_partial: bool = False

    @property
    def name(self) -> str:
        return "<lambda>" if isinstance(self.node, ast.Lambda) else self.node.name


@dataclass(frozen=True, slots=True, eq=False)
class OneOf:
    """One of these functions; it is not known which."""

    functions: tuple[Function, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Class:
    """A class of the project."""

    module: Module
    node: ast.ClassDef


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """An instance of a class of the project. `holds` has the contexts and instances that its attributes were given."""

    of: Class
    holds: dict[str, Context | Instance | None] = field(default_factory=dict)

    def give(self, name: str, value: Value) -> None:
        """Record what is assigned to an attribute; None if it is assigned different things."""
        known = value if isinstance(value, Context | Instance) else None
        self.holds[name] = known if self.holds.get(name, known) == known else None


@dataclass(frozen=True, slots=True)
class ModuleItself:
    """A module of the project."""

    module: Module


@dataclass(frozen=True, slots=True)
class External:
    """A name outside of the project, or what calling a class of that name returns."""

    name: str


@dataclass(frozen=True, slots=True, eq=False)
class WorkflowValue:
    """A workflow of the project, with what `using(...)` gave it: (the arguments, and what is known of them)."""

    name: str
    function: Function | None
    options: Mapping[str, tuple[ast.expr, Result]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Starter:
    """A method of a workflow: `start`, `using`, ..."""

    workflow: WorkflowValue
    method: str


@dataclass(frozen=True, slots=True)
class Input:
    """An argument of the workflow, or a part of it. `is_set`: annotated as one."""

    name: str
    is_set: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """In a step's function: what a local name of the workflow's code holds."""

    name: str
    env: Env


@dataclass(frozen=True, slots=True)
class Text:
    """A constant text."""

    text: str


@dataclass(frozen=True, slots=True)
class OwnSet:
    """A set, whose order differs from process to process."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Rows:
    """A manager or queryset of a model."""


@dataclass(frozen=True, slots=True)
class NaiveMoment:
    """A datetime without a time zone."""


@dataclass(frozen=True, slots=True)
class ContextMoment:
    """The value of `ctx.now()`, which is aware."""


@dataclass(eq=False, slots=True)
class Display:
    """A dict, list or tuple that is written out, such as the bodies for `ctx.join`.

    `by_key` has the origins of each value, by constant keys and positions; what it lacks is not known.
    """

    values: list[Value]
    by_key: dict[object, frozenset[Origin]] = field(default_factory=dict)


_BUILTINS: Final = frozenset(dir(builtins))
_WORKFLOW: Final = frozenset({"durable.workflow", "durable.definitions.workflow"})
_MAX_HOPS: Final = 20  # the most re-exports to follow for a name
_LIBRARIES: Final = ("site-packages", "dist-packages")


def statements(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module that run when it is imported, those within `if` and `try` included."""
    waiting = list(body)[::-1]
    while waiting:
        statement = waiting.pop()
        yield statement
        inner: list[ast.stmt] = []
        for name in ("body", "orelse", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With):
                inner += getattr(statement, name, [])
        if isinstance(statement, ast.Try):
            for handler in statement.handlers:
                inner += handler.body
        waiting += inner[::-1]


class Module:
    """One file of Python: its tree, and what its global names mean."""

    def __init__(self, project: Project, path: Path, text: str, tree: ast.Module) -> None:
        self.project = project
        self.path = path
        self.text = text
        self.tree = tree
        self.root, self.name = _root_and_name(path)

    @cached_property
    def shown_path(self) -> str:
        """The path as findings show it: as it was given, else from the current directory if it is below that."""
        here = Path.cwd()
        is_found = self.path.is_absolute() and not self.project.is_given(self.path) and self.path.is_relative_to(here)
        return str(self.path.relative_to(here) if is_found else self.path)

    @cached_property
    def package(self) -> str:
        """The package that relative imports begin in."""
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]

    @cached_property
    def definitions(self) -> dict[str, ast.AST]:
        """The global names that are assigned, defined or imported here; of several, the last."""
        found: dict[str, ast.AST] = {}
        for each in statements(self.tree.body):
            for name in _bound(each):
                found[name] = each
        return found

    @cached_property
    def stars(self) -> list[str]:
        return [
            self.absolute(each)
            for each in statements(self.tree.body)
            if isinstance(each, ast.ImportFrom) and any(alias.name == "*" for alias in each.names)
        ]

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    @cached_property
    def rebound(self) -> frozenset[str]:
        """The global names that a function of this module rebinds with `global`."""
        return frozenset(name for node in ast.walk(self.tree) if isinstance(node, ast.Global) for name in node.names)

    def is_counter(self, name: str) -> bool:
        """Return True if a global name holds an iterator of `itertools`, which keeps counting from pass to pass."""
        value = getattr(self.definitions.get(name), "value", None)
        made = self.dotted(value.func) if isinstance(value, ast.Call) else None
        return isinstance(made, External) and made.name in ("itertools.count", "itertools.cycle", "builtins.iter")

    def absolute(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        parents = self.package.split(".") if self.package else []
        kept = parents[: len(parents) - (node.level - 1)]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def value(self, name: str, hops: int = 0) -> Value:
        """Return what a global name means; None if that is not known."""
        if hops > _MAX_HOPS:
            return None
        node = self.definitions.get(name)
        if node is None:
            for star in self.stars:
                found = self.project.named(f"{star}.{name}", self, hops + 1)
                if found is not None and not isinstance(found, External):
                    return found
            return External(f"builtins.{name}") if name in _BUILTINS else None
        if isinstance(node, ast.Import | ast.ImportFrom):
            return self.imported(node, name, hops)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return self.function(node)
        if isinstance(node, ast.ClassDef):
            return Class(self, node)
        return self._assigned(node, hops)

    def function(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> Value:
        """Return a global function, as a workflow if it is decorated so."""
        function = Function(self, node, None)
        decorator = workflow_decorator(node, self)
        return function if decorator is None else WorkflowValue(workflow_name(node, decorator, self), function)

    def imported(self, node: ast.Import | ast.ImportFrom, name: str, hops: int = 0) -> Value:
        """Return what an import binds to `name`."""
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                if (alias.asname or alias.name) == name:
                    return self.project.named(f"{self.absolute(node)}.{alias.name}", self, hops + 1)
            elif alias.asname == name:
                return self.project.named(alias.name, self, hops + 1)
            elif alias.asname is None and alias.name.partition(".")[0] == name:
                return self.project.named(name, self, hops + 1)
        return None

    def dotted(self, node: ast.expr, hops: int = 0) -> Value:
        """Return the value of a chain of global names: `module.name`."""
        if isinstance(node, ast.Name):
            return self.value(node.id, hops + 1)
        if isinstance(node, ast.Attribute):
            return self.project.member(self.dotted(node.value, hops + 1), node.attr, hops + 1)
        return None

    def _assigned(self, node: ast.AST, hops: int) -> Value:
        expression = getattr(node, "value", None)
        if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
            return Text(expression.value)
        if isinstance(expression, ast.Call):
            return self._called(expression, hops)
        if isinstance(expression, ast.Name | ast.Attribute):
            return self.dotted(expression, hops + 1)
        if isinstance(expression, ast.Dict):  # a table of functions
            functions = [
                each for each in (self.dotted(value, hops + 1) for value in expression.values) if each is not None
            ]
            return Display(functions) if all(isinstance(each, Function) for each in functions) else None
        return None

    def _called(self, call: ast.Call, hops: int) -> Value:
        if isinstance(call.func, ast.Call):  # fulfil = workflow(name="shop.fulfil")(function)
            maker = self.dotted(call.func.func, hops + 1)
            if isinstance(maker, External) and maker.name in _WORKFLOW and call.args:
                function = self.dotted(call.args[0], hops + 1)
                return WorkflowValue("", function) if isinstance(function, Function) else None
            return None
        made = self.dotted(call.func, hops + 1)
        return made if isinstance(made, External) and is_class_name(made.name) else None


def is_class_name(name: str) -> bool:
    """Return True if the name of something outside of the project looks like a class."""
    last = name.rpartition(".")[2].lstrip("_")
    return last[:1].isupper()


class Project:
    """The modules that have been read, by path. A file is read at most once."""

    def __init__(self, given: Mapping[str, Path] | None = None) -> None:
        self._given = given or {}
        self._modules: dict[str, Module | UnreadableError] = {}
        self._found: dict[tuple[Path, str], Path | None] = {}
        self._here = Path.cwd()

    def is_given(self, path: Path) -> bool:
        """Return True if the path is one of those to lint, and not a file that an import led to."""
        return path in self._given.values()

    def module(self, path: Path) -> Module:
        """Return the module of a file. Raises UnreadableError."""
        real = os.path.realpath(path)
        path = self._given.get(real, path)
        if real not in self._modules:
            try:
                text = text_of(path)
                self._modules[real] = Module(self, path, text, parsed(text))
            except UnreadableError as error:
                self._modules[real] = error
        found = self._modules[real]
        if isinstance(found, UnreadableError):
            raise found
        return found

    def shown(self, shown_path: str) -> Module | None:
        """Return a module that was read, by the path that findings show."""
        read = (each for each in self._modules.values() if isinstance(each, Module))
        return next((each for each in read if each.shown_path == shown_path), None)

    def named(self, name: str, source: Module, hops: int = 0) -> Value:
        """Return the value of an absolute dotted name in a module of the project."""
        if name == "durable" or name.startswith("durable."):
            return External(name)
        parts = name.split(".")
        for count in range(len(parts), 0, -1):
            path = self._file(".".join(parts[:count]), source)
            if path is None:
                continue
            try:
                found: Value = ModuleItself(self.module(path))
            except (UnreadableError, RecursionError):
                return None
            for part in parts[count:]:
                found = self.member(found, part, hops + 1)
            return found
        return External(name)

    def member(self, owner: Value, name: str, hops: int = 0) -> Value:
        if hops > _MAX_HOPS:
            return None
        if isinstance(owner, External):
            return External(f"{owner.name}.{name}")
        if isinstance(owner, ModuleItself):
            if name in owner.module.definitions or owner.module.stars:
                return owner.module.value(name, hops + 1)
            submodule = self._file(f"{owner.module.name}.{name}", owner.module)
            if submodule is None:
                return None
            try:
                return ModuleItself(self.module(submodule))
            except UnreadableError:
                return None
        return None

    def _file(self, name: str, source: Module) -> Path | None:
        """Return the file of a module of the project, by its name as `source` imports it."""
        for root in self._roots(source):
            key = (root, name)
            if key not in self._found:
                self._found[key] = _module_file(root, name)
            if self._found[key] is not None:
                return self._found[key]
        return None

    def _roots(self, source: Module) -> list[Path]:
        roots = [source.root]
        if source.root.is_relative_to(self._here):
            while roots[-1] != self._here:
                roots.append(roots[-1].parent)
        else:
            roots.append(source.root.parent)
        return roots


def _module_file(root: Path, name: str) -> Path | None:
    base = root.joinpath(*name.split("."))
    for path in (base.with_name(f"{base.name}.py"), base / "__init__.py"):
        if _is_file(path) and not any(part in _LIBRARIES for part in path.parts):
            return path
    return None


def _root_and_name(path: Path) -> tuple[Path, str]:
    """Return the directory from which a module's name is imported, and the name."""
    absolute = path.absolute()
    names = [] if absolute.name == "__init__.py" else [absolute.stem]
    parent = absolute.parent
    while _is_file(parent / "__init__.py") and parent != parent.parent:
        names.append(parent.name)
        parent = parent.parent
    return parent, ".".join(reversed(names))


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113  # it raises nothing


def _bound(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    elif isinstance(statement, ast.ImportFrom):
        yield from (alias.asname or alias.name for alias in statement.names if alias.name != "*")
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from (node.id for node in ast.walk(target) if isinstance(node, ast.Name))
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign) and isinstance(statement.target, ast.Name):
        yield statement.target.id


def workflow_decorator(node: ast.FunctionDef | ast.AsyncFunctionDef, module: Module) -> ast.expr | None:
    return next((each for each in node.decorator_list if is_workflow_decorator(each, module)), None)


def is_workflow_decorator(node: ast.expr, module: Module) -> bool:
    """Return True for `@workflow` and `@workflow(...)` of durable, under whatever name they were imported."""
    function = node.func if isinstance(node, ast.Call) else node
    value = module.dotted(function)
    return isinstance(value, External) and value.name in _WORKFLOW


def workflow_name(node: ast.FunctionDef | ast.AsyncFunctionDef, decorator: ast.expr, module: Module) -> str:
    """Return the name given to a workflow, else "<directory>.<function>", as an app's label most often is."""
    if isinstance(decorator, ast.Call):
        for keyword in decorator.keywords:
            if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                return str(keyword.value.value)
    label = module.package.rpartition(".")[2] or module.name
    return f"{label}.{node.name}"
