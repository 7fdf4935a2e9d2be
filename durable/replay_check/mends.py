"""Changes that make the code fit a history: `removed`, `get_version`, the operation as it was, or a rename."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise, takewhile
from types import CodeType, FunctionType
from typing import Any, Final

from durable.core.divergences import BLOCK, Divergence, DivergenceKind, OperationAt
from durable.core.location import general_location, join, parent, unescape, value_name
from durable.core.records import EntryKind

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
    EntryKind.LINK: 'ctx.link("{name}", ...)',
    EntryKind.PUBLISH: 'ctx.publish("{name}", ...)',
    EntryKind.VERSION_CHECK: 'ctx.get_version("{name}", ...)',
    EntryKind.REMOVED: 'ctx.removed("{name}", ...)',
    BLOCK: 'ctx.try_block("{name}", ...)',
}
#: The kinds of operations that `RenameStep` can rename.
_RENAMED: Final = frozenset(
    {
        EntryKind.STEP,
        EntryKind.LOOP,
        EntryKind.SLEEP,
        EntryKind.MESSAGE,
        EntryKind.JOIN,
        EntryKind.RACE,
        EntryKind.ROLLBACK_CHECKPOINT,
        EntryKind.CHILD,
        EntryKind.MAP,
        EntryKind.LINK,
        BLOCK,
    }
)
_WORDS: Final = {BLOCK: "block", EntryKind.VERSION_CHECK: "version", EntryKind.ROLLBACK_CHECKPOINT: "checkpoint"}


def named(operation: OperationAt) -> str:
    """Return the operation in words: `step "pack"`."""
    return f'{_WORDS.get(operation.kind, operation.kind)} "{_name(operation)}"'


def written(operation: OperationAt) -> str:
    """Return the call of the operation as code writes it, without its arguments."""
    return _CALLS.get(operation.kind, f"ctx.{operation.kind}(...)").format(name=_quoted(_name(operation)))


def mend_of(
    found: Divergence,
    function: Callable[..., Any],
    *,
    workflow: str,
    is_async: bool,
    takes_the_same: Callable[[OperationAt], bool],
) -> tuple[str, tuple[str, ...]]:
    """Return the advice about the divergence: a sentence, and lines of code.

    `takes_the_same` returns True for a recorded operation if its arguments equal those of the code's operation, or are
    not recorded.
    """
    await_ = "await " if is_async else ""
    code, names = found.code, _names_in(function)
    left = [each for each in found.recorded if _name(each) not in names]
    if found.kind in (DivergenceKind.REMOVED, DivergenceKind.SKIPPED) and (left or code is None):
        lines = tuple(_removed(each, await_) for each in left or found.recorded)
        return _where_they_were(lines), lines
    if found.kind == DivergenceKind.USED_TWICE:
        return "give each operation of a scope a name of its own, or repeat it with ctx.loop", ()
    if code is None:
        return "bring the operation back", ()
    if found.kind == DivergenceKind.ADDED:
        code = _beside(found.recorded[0], code)
        if found.recorded[0] in left:
            gone = tuple(takewhile(left.__contains__, found.recorded))
            return _replaced(gone, code, workflow, await_, takes_the_same)
        lines = (f"if {_version('with ' + _name(code), await_)} >= 2:", f"    {await_}{written(code)}")
        return f"let runs that are past it go without it: write {_one_line(lines)}", lines
    if found.kind == DivergenceKind.KIND:
        old = found.recorded[0]
        line = _removed(old, await_)
        new_kind, old_kind = (_WORDS.get(each.kind, each.kind) for each in (code, old))
        return f"give the {new_kind} a name of its own, and write {_quote(line)} where the {old_kind} was", (line,)
    if found.kind == DivergenceKind.SKIPPED:
        lines = _either("order", (*found.recorded, code), (code, *found.recorded), await_)
    else:
        lines = _either("change", found.recorded[:1] or (code,), (code,), await_)
    return _keep(lines), lines


def _replaced(
    gone: tuple[OperationAt, ...],
    code: OperationAt,
    workflow: str,
    await_: str,
    takes_the_same: Callable[[OperationAt], bool],
) -> tuple[str, tuple[str, ...]]:
    """Return the advice if the code has one operation in place of recorded ones that are gone.

    If exactly one of them may be the same under another name, those before it were removed. Otherwise only the author
    knows which one the new operation replaces, so runs that have them keep them all.
    """
    same = [each for each in gone if code.kind == each.kind in _RENAMED and takes_the_same(each)]
    if len(same) != 1:
        lines = _either("change", gone, (code,), await_)
        if not same:
            return _keep(lines), lines
        others = (
            f"write `{await_}ctx.removed` for those before it, and rename it with `RenameStep` (durable.migrations)"
        )
        return f"{_keep(lines)}; or, if one of them is {named(code)} under another name, {others}", lines
    old = same[0]
    removed = tuple(_removed(each, await_) for each in gone[: gone.index(old)])
    lines = _either("change", (old,), (code,), await_)
    old_place, new_place = map(general_location, (old.location, code.location))
    rename = f'RenameStep("{_quoted(workflow)}", "{_quoted(old_place)}", "{_quoted(new_place)}")'
    mend = (
        f"{_keep(lines)}; or, if {named(old)} is {named(code)} under another name, rename it with {_quote(rename)} "
        "(durable.migrations)"
    )
    return (f"{_where_they_were(removed)}; {mend}" if removed else mend), (*removed, *lines)


def _beside(recorded: OperationAt, code: OperationAt) -> OperationAt:
    """Return the code's operation in the scope of the recorded one; if it is inside a new block, that block."""
    scope = parent(recorded.location)
    below = code.location.removeprefix(f"{scope}/") if scope else code.location
    segment, *inside = below.split("/")
    return OperationAt(BLOCK, join(scope, segment)) if inside else code


def _either(what: str, before: tuple[OperationAt, ...], now: tuple[OperationAt, ...], await_: str) -> tuple[str, ...]:
    """Return code that does what the recorded runs have, or else what the code does now."""
    return (
        f"if {_version(f'{what} of {_name(before[0])}', await_)} == 1:",
        *(f"    {await_}{written(each)}" for each in before),
        "else:",
        *(f"    {await_}{written(each)}" for each in now),
    )


def _keep(lines: tuple[str, ...]) -> str:
    return f"keep what was there for the runs that have it: write {_one_line(lines)}"


def _where_they_were(lines: tuple[str, ...]) -> str:
    which = "it was" if len(lines) == 1 else "they were"
    return f"write {_listed(lines)} where {which}, until the runs that have it have ended"


def _removed(operation: OperationAt, await_: str) -> str:
    kind = EntryKind.STEP if operation.kind == BLOCK else operation.kind
    return f'{await_}ctx.removed("{_quoted(_name(operation))}", "{kind}")'


def _version(name: str, await_: str) -> str:
    call = f'{await_}ctx.get_version("{_quoted(name)}", 2)'
    return f"({call})" if await_ else call


def _one_line(lines: tuple[str, ...]) -> str:
    text = ""
    for before, each in pairwise(("", *lines)):
        both_are_statements = before.startswith(" ") and each.startswith(" ")
        text += f"{'; ' if both_are_statements else ' '}{each.strip()}"
    return _quote(text.strip())


def _quote(line: str) -> str:
    return f"`{line}`"


def _listed(lines: tuple[str, ...]) -> str:
    return ", ".join(map(_quote, lines))


def _name(operation: OperationAt) -> str:
    if operation.kind == EntryKind.PUBLISH:
        return value_name(operation.location)
    return unescape(operation.location.rpartition("/")[2])


def _quoted(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"')


def _names_in(function: Callable[..., Any]) -> frozenset[str]:
    """Return the string constants in the function, and in the functions of its module that it mentions."""
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


_MOST: Final = 200  # functions to search for names


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes(each)
