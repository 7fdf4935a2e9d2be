"""The try block: a scope whose terminal failures can be caught, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from durable.core.bodies import run_body
from durable.core.effects import Operation
from durable.core.errors import ContractError, ErrorInfo, RollbackError
from durable.core.results import BlockCatch, BlockFailure, BlockResult, failure_of
from durable.core.scope import Scope

BLOCK_CATCHES: tuple[BlockCatch, ...] = ("step", "join", "race", "child", "map", "rollback")
BLOCK_CATCHES_DEFAULT: tuple[BlockCatch, ...] = ("step", "join", "race", "child", "map")


def try_block(scope: Scope, name: str, body: Callable[..., Any], catch: Collection[str]) -> Operation:
    """Return the body's value, or the terminal failure that left it if its kind is caught, as a `BlockResult`."""
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
