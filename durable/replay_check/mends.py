"""Changes of the code that make it fit a history: `removed`, `get_version`, or the operation as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from durable.core.divergences import BLOCK, Divergence, DivergenceKind, OperationAt
from durable.core.location import unescape
from durable.core.records import EntryKind

__all__ = ["mend_of", "named", "written"]

_CALLS: Final = {
    EntryKind.STEP: 'ctx.step("{name}", ...)',
    EntryKind.LOOP: 'ctx.loop("{name}", ...)',
    EntryKind.SLEEP: 'ctx.sleep("{name}", ...)',
    EntryKind.MESSAGE: 'ctx.queue.next("{name}", ...)',
    EntryKind.SEND: "ctx.queue.send(...)",
    EntryKind.JOIN: 'ctx.join("{name}", ...)',
    EntryKind.RACE: 'ctx.race("{name}", ...)',
    EntryKind.ROLLBACK_CHECKPOINT: 'ctx.rollback_checkpoint("{name}")',
    EntryKind.COMPENSATE: "ctx.compensate(...)",
    EntryKind.CHILD: 'ctx.child("{name}", ...)',
    EntryKind.MAP: 'ctx.map("{name}", ...)',
    EntryKind.TAG: "ctx.tag(...)",
    EntryKind.VERSION_CHECK: 'ctx.get_version("{name}", ...)',
    EntryKind.REMOVED: 'ctx.removed("{name}", ...)',
    BLOCK: 'ctx.try_block("{name}", ...)',
}
_WORDS: Final = {BLOCK: "block", EntryKind.VERSION_CHECK: "version", EntryKind.ROLLBACK_CHECKPOINT: "checkpoint"}


def named(operation: OperationAt) -> str:
    """Return the operation in words: `step "pack"`."""
    return f'{_WORDS.get(operation.kind, operation.kind)} "{_name(operation)}"'


def written(operation: OperationAt) -> str:
    """Return the call of the operation as code writes it, without its arguments."""
    return _CALLS.get(operation.kind, f"ctx.{operation.kind}(...)").format(name=_quoted(_name(operation)))


def mend_of(found: Divergence, function: Callable[..., Any], *, is_async: bool) -> tuple[str, tuple[str, ...]]:
    """Return what to do about the divergence, as a sentence, and the lines of code that it has."""
    await_ = "await " if is_async else ""
    code, names = found.code, _names_in(function)
    left = [each for each in found.recorded if _name(each) not in names]
    if found.kind in (DivergenceKind.REMOVED, DivergenceKind.SKIPPED) and (left or code is None):
        lines = tuple(_removed(each, await_) for each in left or found.recorded)
        which = "it was" if len(lines) == 1 else "they were"
        return f"write {_listed(lines)} where {which}, until the runs that have it have ended", lines
    if found.kind == DivergenceKind.USED_TWICE:
        return "give each operation of a scope a name of its own, or repeat it with ctx.loop", ()
    if code is None:
        return "bring the operation back", ()
    if found.kind == DivergenceKind.ADDED and found.recorded[0] not in left:
        lines = (f"if {_version('with ' + _name(code), await_)} >= 2:", f"    {await_}{written(code)}")
        return f"let runs that are past it go without it: write {_one_line(lines)}", lines
    if found.kind == DivergenceKind.KIND:
        old = found.recorded[0]
        line = _removed(old, await_)
        new_kind, old_kind = (_WORDS.get(each.kind, each.kind) for each in (code, old))
        return f"give the {new_kind} a name of its own, and write {_quote(line)} where the {old_kind} was", (line,)
    old = found.recorded[0] if found.recorded else code
    what = "order" if found.kind == DivergenceKind.SKIPPED else "change"
    lines = (
        f"if {_version(f'{what} of {_name(old)}', await_)} == 1:",
        f"    {await_}{written(old)}",
        "else:",
        f"    {await_}{written(code)}",
    )
    return f"keep what was there for the runs that have it: write {_one_line(lines)}", lines


def _removed(operation: OperationAt, await_: str) -> str:
    kind = EntryKind.STEP if operation.kind == BLOCK else operation.kind
    return f'{await_}ctx.removed("{_quoted(_name(operation))}", "{kind}")'


def _version(name: str, await_: str) -> str:
    call = f'{await_}ctx.get_version("{_quoted(name)}", 2)'
    return f"({call})" if await_ else call


def _one_line(lines: tuple[str, ...]) -> str:
    return _quote(" ".join(each.strip() for each in lines))


def _quote(line: str) -> str:
    return f"`{line}`"


def _listed(lines: tuple[str, ...]) -> str:
    return ", ".join(map(_quote, lines))


def _name(operation: OperationAt) -> str:
    return unescape(operation.location.rpartition("/")[2])


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _names_in(function: Callable[..., Any]) -> frozenset[str]:
    """Return the texts in the code of the function, and of the functions of its module that it mentions."""
    found: set[str] = set()
    waiting: list[Any] = [getattr(function, "__wrapped__", function)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        if not isinstance(each, FunctionType) or id(each) in seen:
            continue
        seen.add(id(each))
        for code in _codes(each.__code__):
            found.update(text for text in code.co_consts if isinstance(text, str))
            waiting += [each.__globals__.get(name) for name in code.co_names]
    return frozenset(found)


_MOST: Final = 200  # functions that are looked through for names


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
