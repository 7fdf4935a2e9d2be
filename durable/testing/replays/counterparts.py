"""Functions as another process would run them at another time: with another clock, and with sets in another order.

A counterpart is made from the function's own code. Its global names and the variables around it are copies, so that a
replay neither changes what the test counts in them nor prints. Nothing of the function itself, its module or the
process is changed. Owns which names are replaced by what. Code in classes and installed packages stays as it is.

The order of a set follows from the hashes of its values and from the size of its table. The seed of the hashes cannot
be changed in a running process, the size can: a set with a larger table has the same values in another order. Sets of
numbers alone have the same order in each process, and keep it.
"""

from __future__ import annotations

import ast
import builtins
import copy
import datetime
import dis
import linecache
import logging
import sysconfig
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from functools import lru_cache, partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

from django.utils import timezone

from durable.core.scope import SILENT

#: How far the replay's clock is ahead: another day of the week, another half of the day, mostly another year.
SHIFT: Final = datetime.timedelta(days=200, hours=12, minutes=31, seconds=17)

_COPIED: Final = frozenset({list, dict, set, deque, Counter, OrderedDict, defaultdict, bytearray})
_READ_THE_CLOCK: Final = frozenset({"now", "utcnow", "today"})
_FREEZER: Final = "freezegun.api"  # replaces the classes in each module by its own
_PYTHON: Final = sysconfig.get_paths()["stdlib"]


class Counterparts:
    """The counterparts of one replay: one for each function, variable and container."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}
        self._kept: list[Any] = []  # so that no id is used again
        self._globals: dict[int, dict[str, Any]] = {}
        self._originals: dict[Any, FunctionType] = {}

    def with_own_handlers(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Return a context's `call` that gets rollback handlers and `verify` which can be imported, instead of their
        counterparts.
        """

        def called(*args: Any, **options: Any) -> Any:
            for name in ("rollback", "verify"):
                if (handler := options.get(name)) is not None:
                    options[name] = self._originals.get(handler, handler)
            return call(*args, **options)

        return called

    def of(self, value: Any, names: frozenset[str] = frozenset()) -> Any:
        """Return the counterpart of `value` for code that mentions `names`; usually the value itself."""
        kind = type(value)
        if kind is FunctionType:
            return self._once(value, self._function) if _is_applications(value.__code__) else _SHIFTED.get(value, value)
        if kind is MethodType and _is_applications(getattr(value.__func__, "__code__", None)):
            return MethodType(self.of(value.__func__), value.__self__)
        if kind is partial:
            return partial(self.of(value.func), *value.args, **value.keywords)
        if kind in _COPIED:
            return self._once(value, lambda made: made(copy.copy(value)))
        if kind is ModuleType:
            return self._module(value)
        if kind is logging.Logger:
            return SILENT
        if kind is type:
            return _CLASSES.get(value, value) if names & _READ_THE_CLOCK else value
        if isinstance(value, type) and value.__module__ == _FREEZER:
            return next((made for real, made in _CLASSES.items() if issubclass(value, real)), value)
        if kind is _BUILTIN and value.__module__ == "time":
            return _SHIFTED.get(value, value)
        return value

    def _once(self, value: Any, make: Callable[..., Any]) -> Any:
        if id(value) not in self._made:
            self._kept.append(value)
            if make == self._function:
                make(value)
            else:
                make(partial(self._made.__setitem__, id(value)))
        return self._made[id(value)]

    def _function(self, function: FunctionType) -> None:
        code = with_other_orders(function.__code__)
        names = _names_in(function.__code__)
        namespace = self._namespace(function.__globals__)
        cells = tuple(CellType() for _ in function.__closure__ or ())
        made = FunctionType(code, namespace, function.__name__, None, cells or None)
        made.__qualname__ = function.__qualname__
        made.__kwdefaults__ = function.__kwdefaults__
        made.__dict__.update(function.__dict__)
        self._made[id(function)] = made
        self._originals[made] = function
        for name in names:
            if name in namespace:
                namespace[name] = self.of(function.__globals__.get(name), names)
        made.__defaults__ = None if function.__defaults__ is None else tuple(map(self.of, function.__defaults__))
        for mine, cell in zip(cells, function.__closure__ or (), strict=True):
            self._fill(mine, cell, names)

    def _namespace(self, found: dict[str, Any]) -> dict[str, Any]:
        if id(found) not in self._globals:
            self._kept.append(found)
            self._globals[id(found)] = {**found, "__builtins__": _BUILTINS}
        return self._globals[id(found)]

    def _fill(self, mine: CellType, cell: CellType, names: frozenset[str]) -> None:
        try:
            value = cell.cell_contents
        except ValueError:  # the variable has no value yet
            return
        mine.cell_contents = self.of(value, names)

    def _module(self, module: ModuleType) -> Any:
        if module in _MODULES:
            return _MODULES[module]
        path = getattr(module, "__file__", None) or ""
        name = module.__name__
        if (
            not path
            or not _is_applications_path(path)
            or name.partition(".")[0] == "durable"
            or hasattr(module, "__path__")
        ):
            return module
        return self._once(module, lambda made: made(_Names(module, self.of)))


class _Names:
    """A module whose attributes are counterparts."""

    def __init__(self, module: ModuleType, of: Callable[..., Any]) -> None:
        self._durable_module = module
        self._durable_of = of

    def __getattr__(self, name: str) -> Any:
        return self._durable_of(getattr(self._durable_module, name), _READ_THE_CLOCK)


def _is_applications(code: CodeType | None) -> bool:
    return code is not None and _is_applications_path(code.co_filename)


@lru_cache(maxsize=10_000)
def _is_applications_path(path: str) -> bool:
    ours = __file__.rpartition("durable/testing/")[0] + "durable/"
    return not ("site-packages" in path or "dist-packages" in path or path.startswith((_PYTHON, ours, "<frozen ")))


@lru_cache(maxsize=10_000)
def _names_in(code: CodeType) -> frozenset[str]:
    """Return the names of globals and attributes used in the code and in the code nested in it."""
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return frozenset(code.co_names).union(*inner)


# -- another clock


class _Kind(type):
    """A class that stands in for another one."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, cls.__bases__)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.__bases__)


class _Datetime(datetime.datetime, metaclass=_Kind):
    def __new__(cls, *args: Any, **options: Any) -> Any:
        return datetime.datetime(*args, **options)  # noqa: DTZ001  # as the code wants it

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return datetime.datetime.now(tz) + SHIFT

    @classmethod
    def utcnow(cls) -> Any:
        return datetime.datetime.now(datetime.UTC).replace(tzinfo=None) + SHIFT

    @classmethod
    def today(cls) -> Any:
        return datetime.datetime.now() + SHIFT  # noqa: DTZ005  # as today() does


class _Date(datetime.date, metaclass=_Kind):
    def __new__(cls, *args: Any, **options: Any) -> Any:
        return datetime.date(*args, **options)

    @classmethod
    def today(cls) -> Any:
        return datetime.date.today() + SHIFT  # noqa: DTZ011  # as today() does


class _Clocks:
    """A module with some names replaced."""

    def __init__(self, module: ModuleType, names: dict[str, Any]) -> None:
        vars(self).update(names)
        self._durable_module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._durable_module, name)


def _shifted(function: Callable[..., Any], by: Any) -> Callable[..., Any]:
    def shifted(*args: Any, **options: Any) -> Any:
        return function(*args, **options) + by

    return shifted


def _local(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `localtime` or `localdate` with the shifted clock if no moment is given."""

    def local(value: Any = None, timezone: Any = None) -> Any:
        return function(_now() if value is None else value, timezone)

    return local


_SECONDS: Final = SHIFT.total_seconds()
_now: Final = _shifted(timezone.now, SHIFT)
_SHIFTED: Final[dict[Any, Callable[..., Any]]] = {
    **{getattr(time, name): _shifted(getattr(time, name), _SECONDS) for name in ("time", "monotonic", "perf_counter")},
    **{
        getattr(time, f"{name}_ns"): _shifted(getattr(time, f"{name}_ns"), int(_SECONDS * 1e9))
        for name in ("time", "monotonic", "perf_counter")
    },
    timezone.now: _now,
    timezone.localtime: _local(timezone.localtime),
    timezone.localdate: _local(timezone.localdate),
}
_CLASSES: Final[dict[type, type]] = {datetime.datetime: _Datetime, datetime.date: _Date}
_MODULES: Final[dict[ModuleType, Any]] = {
    time: _Clocks(time, {each.__name__: made for each, made in _SHIFTED.items() if each.__module__ == "time"}),
    datetime: _Clocks(datetime, {"datetime": _Datetime, "date": _Date}),
    timezone: _Clocks(
        timezone, {each.__name__: made for each, made in _SHIFTED.items() if each.__module__ == timezone.__name__}
    ),
}
_BUILTIN: Final = type(time.time)


# -- sets in another order


_MAKING: Final = frozenset({"set", "union", "intersection", "difference", "symmetric_difference"})
#: Numbers of values by which to enlarge a set's table; the first that changes the order is used.
_SIZES: Final = tuple(20 * 2**power for power in range(15))
_STEADY: Final = (bool, int, float, complex, type(None))
NAME: Final = "__durable_reordered__"
_OPCODES: Final = tuple(dis.opmap[each] for each in ("BUILD_SET", "SET_ADD") if each in dis.opmap)


def reordered(value: Any) -> Any:
    """Return an equal set in another order if possible; any other value unchanged."""
    if type(value) is not set or len(value) < 2 or all(isinstance(each, _STEADY) for each in value):
        return value
    before = list(value)
    known = (before, list(set(before)))  # how it is, and how it is when it is made anew
    for size in _SIZES:
        others = set(range(-size, 0)) - value
        found = others | value
        for each in others:
            found.discard(each)  # one by one, which leaves the table as large as it is
        if list(found) not in known:
            return found
    return value


def with_other_orders(code: CodeType) -> CodeType:
    """Return the code, changed so that its sets have another order; the code itself if that is impossible."""
    if not _makes_sets(code):
        return code
    return _changed(code.co_filename).get((code.co_qualname, code.co_firstlineno, code.co_freevars), code)


def _makes_sets(code: CodeType) -> bool:
    if not _MAKING.isdisjoint(code.co_names) or any(each in code.co_code[::2] for each in _OPCODES):
        return True
    return any(_makes_sets(each) for each in code.co_consts if isinstance(each, CodeType))


@lru_cache(maxsize=64)
def _changed(path: str) -> dict[tuple[str, int, tuple[str, ...]], CodeType]:
    """Return the code objects of a file with their sets reordered; none for names that several of them share."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
        module = compile(ast.fix_missing_locations(_Reordering().visit(tree)), path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return {}
    found: dict[tuple[str, int, tuple[str, ...]], CodeType] = {}
    doubtful = set()
    waiting = [module]
    while waiting:
        for each in waiting.pop().co_consts:
            if isinstance(each, CodeType):
                key = (each.co_qualname, each.co_firstlineno, each.co_freevars)
                if key in found:
                    doubtful.add(key)
                found[key] = each
                waiting.append(each)
    return {key: each for key, each in found.items() if key not in doubtful}


class _Reordering(ast.NodeTransformer):
    """Wraps expressions that may make a set in a call of `reordered`."""

    def _wrapped(self, node: ast.expr) -> ast.expr:
        self.generic_visit(node)
        called = ast.Call(ast.Name(NAME, ast.Load()), [node], [])
        return ast.copy_location(called, node)

    visit_Set = visit_SetComp = _wrapped  # noqa: N815  # ast's names

    def visit_Call(self, node: ast.Call) -> ast.expr:  # ast's name
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name in _MAKING:
            return self._wrapped(node)
        self.generic_visit(node)
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:  # ast's name
        if isinstance(node.op, ast.BitOr | ast.BitAnd | ast.BitXor | ast.Sub):
            return self._wrapped(node)
        self.generic_visit(node)
        return node


def _print_nothing(*_args: Any, **_options: Any) -> None:
    """Print nothing: the first pass has already printed it."""


_BUILTINS: Final = {**vars(builtins), "print": _print_nothing, NAME: reordered}
