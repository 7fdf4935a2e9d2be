"""Run the code of a scope: a workflow's function, a loop's iteration, a branch or a try block.

Owns what a scope's code must have done when it ends, whatever it returned. Must not know what kind of scope it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from durable.core.effects import Body, Operation
from durable.core.errors import (
    ContractError,
    ErrorInfo,
    MessageNotCompletedError,
    OutsideStepError,
    PayloadError,
    RollbackError,
)
from durable.core.location import unescape
from durable.core.results import BlockCatch, BlockFailure, BlockResult, failure_of
from durable.core.retries import RetryLater
from durable.core.scope import Scope


def run_body(scope: Scope, function: Callable[..., Any], *args: Any) -> Operation:
    """Call `function` with a context for `scope` and with `args`. Return its value when the scope has ended.

    Raises the errors found at the scope's end, even if the code returned normally.
    """
    try:
        value = yield Body(scope, function, args)
    except PayloadError:
        raise
    except RetryLater:
        scope.journal.stop(
            OutsideStepError("RetryLater raised", "raise it in a step's function, whose attempt it ends")
        )
    except Exception as error:
        scope.finish(error)
        raise
    scope.finish()
    _check_messages(scope)
    return value


def _check_messages(scope: Scope) -> None:
    """Raise MessageNotCompletedError for a completable message of this scope that was not completed."""
    if scope.branch is not None and scope.branch.is_cancelled():
        return  # the end of a losing branch's code does not count
    for wait, message_id in scope.receipts.uncompleted_messages():
        scope.journal.stop(MessageNotCompletedError(unescape(wait.location), message_id))


BLOCK_CATCHES: tuple[BlockCatch, ...] = ("step", "join", "race", "child", "map", "rollback")
BLOCK_CATCHES_DEFAULT: tuple[BlockCatch, ...] = ("step", "join", "race", "child", "map")


def try_block(scope: Scope, name: str, body: Callable[..., Any], catch: Collection[str]) -> Operation:
    """Return a `BlockResult` with the body's value, or with its terminal failure if that kind is caught."""
    block = Scope(scope.journal, scope.cursor.match_block(name), scope)
    try:
        value = yield from run_body(block, body)
    except ContractError:
        raise
    except Exception as error:
        failure = _failure(name, error)
        if failure is None or _catch_kind(failure) not in catch:
            raise
        return BlockResult(ok=False, failure=failure)
    finally:
        scope.determinism.moment = max(scope.determinism.moment, block.determinism.moment)
        scope.receipts.adopt(block.receipts)
    return BlockResult(ok=True, value=value)


def _failure(name: str, error: Exception) -> BlockFailure | None:
    failure = failure_of(error)
    if failure is not None:
        return BlockFailure(failure.source, failure.name, failure.error, failure.step)
    if isinstance(error, RollbackError):
        return BlockFailure("block", name, ErrorInfo(type(error).__name__, str(error)))
    return None


def _catch_kind(failure: BlockFailure) -> str:
    if failure.step is not None:
        return "rollback" if failure.step.kind == "rollback" else "step"
    return "rollback" if failure.source == "block" else failure.source
