"""Functions, classes and modules by their recorded names, and names that have moved.

Owns the other names of a recorded name. They are tried only if a name does not exist in this process: a name always
means first what this process has under it. A process knows the moves that were put in force in it; for a name that
these do not explain, it looks again with the function of `look_with`.

Owns how far a recorded name may lead. `resolve_name` imports any module: a worker calls a rollback handler by its name,
even if nothing has imported it yet. `used_module` and `resolve_used` are for readers of records that another program
may have written. They import only modules whose top-level package this process has already imported, and whose source
has the name. Within `importing_nothing` they import none. Nothing here calls what it finds.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Final, NamedTuple, TypeAlias

_MOST_CHARACTERS: Final = 500


class Move(NamedTuple):
    """A class or function, with everything nested in it, that has moved from `old` to `new`."""

    old: str
    new: str


class Moves:
    """The moves of recorded names, the oldest first."""

    __slots__ = ("_moves",)

    def __init__(self, moves: Iterable[Move] = ()) -> None:
        self._moves = tuple(moves)

    def newest(self, name: str) -> str:
        for each in self._moves:
            name = _below(name, each.old, each.new)
        return name

    def others(self, name: str) -> tuple[str, ...]:
        """Return the other names of the object that `name` names, the newest first."""
        found = {(at := self.newest(name)): None}
        for each in reversed(self._moves):
            at = _below(at, each.new, each.old)
            found[at] = None
        found.pop(name, None)
        return tuple(found)

    def check(self, move: Move) -> None:
        """Raise ValueError for a move that does not start at the newest name, or leads to another object's name."""
        now = self.newest(move.old)
        if now != move.old:
            raise ValueError(f"{move.old} has moved to {now} already: move it on from there")
        if move.new in self.others(move.old):
            return  # it moves back
        if move.new in (name for each in self._moves for name in each):
            raise ValueError(
                f"{move.new} is a name of something else that has moved: after this, records of the two could not be distinguished"
            )


def _below(name: str, old: str, new: str) -> str:
    """Replace `old` by `new` if the name is `old` or something nested in it; return other names unchanged."""
    return new + name[len(old) :] if name == old or name.startswith(f"{old}.") else name


def recorded_name(path: str) -> str:
    """Return the recorded form of "shop.orders.Order" or of "shop.orders:Order.Line".

    Raises TypeError or ValueError for an invalid path.
    """
    if not isinstance(path, str):
        raise TypeError(f'a class or function is given by its path, such as "shop.orders.Order", not {path!r}')
    module, _, qualname = path.partition(":") if ":" in path else path.rpartition(".")
    parts = (*module.split("."), *qualname.split("."))
    if not all(part.isidentifier() for part in parts):
        raise ValueError(
            f"{ascii(path)[:200]} is not a path of a class or function: write it as shop.orders.Order, or with a colon behind the "
            "module, as shop.orders:Order.Line, for what is nested in a class"
        )
    if "__main__" in parts:
        raise ValueError(f"{path[:200]} is a part of a program, and records name what can be imported")
    if len(path) > _MOST_CHARACTERS:
        raise ValueError(f"a path has at most {_MOST_CHARACTERS} characters")
    return f"{module}:{qualname}"


class _InForce(NamedTuple):
    moves: Moves
    #: Whether the process may look for more moves.
    looks: bool


#: The moves of durable's own classes: a step may have returned their instances, or a bulk may have been given one.
OWN: Final = (
    Move("durable.operations.families:ChildrenFirst", "durable.operations.bulk:ChildrenFirst"),
    Move("durable.operations.canary:Canary", "durable.operations.bulk_decisions:Canary"),
    Move("durable.operations.canary:CanaryLook", "durable.operations.bulk_decisions:CanaryLook"),
    Move("durable.operations.run_info:RunInfo", "durable.operations.queries:RunInfo"),
    Move("durable.inspection.family:FailedChildren", "durable.inspection.children:FailedChildren"),
    Move("durable.operations.history:HistoryEntry", "durable.operations.queries:HistoryEntry"),
    Move("durable.operations.comparison:HistoryDifference", "durable.operations.queries:HistoryDifference"),
)
_known = _InForce(Moves(OWN), looks=True)
_look: Callable[[], object] | None = None


def put_in_force(moves: Iterable[Move]) -> None:
    """Replace the moves in force in this process by these, the oldest first."""
    global _known  # one value, replaced whole, that threads read without a lock
    if _known.looks:
        _known = _InForce(Moves((*OWN, *moves)), looks=True)


@contextmanager
def in_force(moves: Iterable[Move]) -> Iterator[None]:
    """Use exactly these moves within the block, and look for no others."""
    global _known  # see `put_in_force`
    before = _known
    _known = _InForce(Moves((*OWN, *moves)), looks=False)
    try:
        yield
    finally:
        _known = before


def look_with(look: Callable[[], object]) -> None:
    """Register `look`, which reads the recorded moves again and puts them in force, before this process gives up a
    name.
    """
    global _look  # set once, when Django is set up
    _look = look


def other_names(name: str) -> Iterator[str]:
    """Yield the other names of a recorded name, the newest first.

    Called for a name that does not exist in this process.
    """
    if "<" in name:  # inside a function, where no process can import it
        return
    known = _known.moves.others(name)
    yield from known
    if _look is not None and _known.looks:
        _look()
        yield from (each for each in _known.moves.others(name) if each not in known)


_Definitions: TypeAlias = "type[ast.ClassDef] | tuple[type[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef], ...]"
_DEFINITIONS: Final[_Definitions] = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


class ModuleRefused(ImportError):
    """A recorded module that is not imported: it is a program, lacks the name, or fails to import."""


class NotInUse(ModuleRefused):
    """This process has not imported the module of `name`, or its top-level package."""


_imports_nothing: ContextVar[bool] = ContextVar("durable_imports_nothing", default=False)


@contextmanager
def importing_nothing() -> Iterator[None]:
    """Within the block, let `used_module` find imported modules only: for records from a file of unknown origin."""
    token = _imports_nothing.set(True)
    try:
        yield
    finally:
        _imports_nothing.reset(token)


def resolve_name(name: str) -> Callable[..., Any]:
    """Return the handler or class that "module:qualname" names. Raises ImportError or AttributeError if it is gone."""
    return _first(_imported, name)


def resolve_used(name: str) -> Callable[..., Any]:
    """Return the object that "module:qualname" names, without importing or running anything for the record's sake.

    A name in a module that is not imported is looked up in its source; the answer is then a stand-in function. Raises
    AttributeError or ImportError (of which `NotInUse` is a subclass).
    """
    return _first(_used, name)


def _first(resolve: Callable[[str], Callable[..., Any]], name: str) -> Callable[..., Any]:
    """Return the object of the first of the names, the given one and its other names, that exists."""
    try:
        return resolve(name)
    except (ImportError, AttributeError):
        for other in other_names(name):
            with suppress(ImportError, AttributeError):
                return resolve(other)
        raise


def _imported(name: str) -> Callable[..., Any]:
    module, _, qualname = name.partition(":")
    found: Any = import_module(module)
    for part in qualname.split("."):
        found = getattr(found, part)
    return _callable(found, name)


def _used(name: str) -> Callable[..., Any]:
    module_name, _, qualname = name.partition(":")
    steps = qualname.split(".")
    if not all(part.isidentifier() for part in (*module_name.split("."), *steps)):
        raise ModuleRefused(f"{ascii(name)[:200]} is not the name of a function or class")
    module = sys.modules.get(module_name)
    if module is None:
        if _source_has(module_name, steps[0]):
            return _not_imported
        if module_name.partition(".")[0] in sys.modules:
            raise ModuleRefused(f"{module_name} has no {steps[0]}")
        raise NotInUse(f"nothing in this process has imported {module_name.partition('.')[0]}")
    # getattr() would run a module's __getattr__ or a property
    found: Any = inspect.getattr_static(module, steps[0])
    for part in steps[1:]:
        if not isinstance(found, type):
            raise AttributeError(f"{name} is not a part of a class")
        found = inspect.getattr_static(found, part)
    return _callable(found, name)


def _not_imported(*_: object) -> None:
    """Stand for a function that exists in a module that this process has not imported."""
    raise ModuleRefused("a function of a module that is not imported is not called")


def _callable(found: Any, name: str) -> Callable[..., Any]:
    if not callable(found):
        raise AttributeError(f"{name} is not callable")
    return found  # type: ignore[no-any-return]  # found by name, so of any type


def used_module(module_name: str, wanted: str) -> ModuleType:
    """Return the module of a recorded class or alias `wanted`; import it only if its package is in use.

    Raises ModuleRefused.
    """
    module = sys.modules.get(module_name)
    if module is not None:
        return module
    needed = module_name if _imports_nothing.get() else module_name.partition(".")[0]
    if needed not in sys.modules:
        raise NotInUse(f"nothing in this process has imported {needed}", name=needed)
    if "__main__" in module_name:
        # A package's __main__ is a program; importing it runs it.
        raise ModuleRefused(f"{module_name} is a part of a program, not of a library")
    if not _has_name(_spec(module_name), wanted, ast.ClassDef):
        raise ModuleRefused(
            f"{module_name} has no {wanted}"
        )  # importing it would run a file that the record has chosen
    try:
        return import_module(module_name)
    except Exception as error:  # the module's own code runs here and may raise anything
        raise ModuleRefused(f"{module_name} cannot be imported ({type(error).__name__}: {error})") from error


@lru_cache(maxsize=1024)
def _source_has(module_name: str, wanted: str) -> bool:
    """Return whether the source of a module has the name, without importing the module."""
    return "__main__" not in module_name and _has_name(_spec(module_name), wanted, _DEFINITIONS)


def _has_name(spec: ModuleSpec | None, wanted: str, definitions: _Definitions) -> bool:
    """Return whether the module's source defines `wanted`, without importing the module."""
    source = None if spec is None or spec.loader is None else getattr(spec.loader, "get_source", None)
    try:
        text = None if source is None or spec is None else source(spec.name)
        tree = None if text is None else ast.parse(text)
    except (SyntaxError, ValueError, ImportError, OSError, RecursionError):
        return False
    return tree is not None and any(wanted in _names_of(node, definitions) for node in _top_level(tree))


def _spec(module_name: str) -> ModuleSpec | None:
    """Find the spec of the module without importing the packages around it."""
    around, _, _ = module_name.rpartition(".")
    if not around:
        return _top_level_spec(module_name)
    loaded_package = sys.modules.get(around)
    if loaded_package is not None:
        places = getattr(loaded_package, "__path__", None)
    else:
        package = _spec(around)
        places = None if package is None else package.submodule_search_locations
    return None if places is None else PathFinder.find_spec(module_name, list(places))


def _top_level_spec(module_name: str) -> ModuleSpec | None:
    try:
        return find_spec(module_name)
    except ValueError:  # imported without a spec, as a program is
        return None


def _top_level(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yield the top-level statements of a module, including those under `if` and `try`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.stmt):
            yield node
            if isinstance(node, ast.If | ast.Try):
                yield from _top_level(node)
        elif isinstance(node, ast.ExceptHandler):
            yield from _top_level(node)


def _names_of(node: ast.stmt, definitions: _Definitions) -> list[str]:
    if isinstance(node, definitions):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [each.asname or each.name for each in node.names]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [each.id for each in targets if isinstance(each, ast.Name)]
