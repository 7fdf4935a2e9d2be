"""Sets in another order, as in a process with another seed for the hashes of texts.

The order of a set follows from the hashes of its values and from the size of its table. The seed cannot be changed in a
running process, the size can: a set with a larger table has the same values in another order. Owns code that makes such
sets of what its source makes. Sets of numbers alone have the same order in each process, and keep it.
"""

from __future__ import annotations

import ast
import dis
import linecache
from functools import lru_cache
from types import CodeType
from typing import Any, Final

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
