"""Run the code of a scope: a workflow's function, a loop's iteration, a branch or a try block.

Owns what a scope's code must have done when it ends, whatever it returned. Must not know what kind of scope it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from durable.core.effects import Body, Operation
from durable.core.errors import MessageNotCompletedError, OutsideStepError, PayloadError
from durable.core.location import unescape
from durable.core.retry_later import RetryLater
from durable.core.scope import Scope


def run_body(scope: Scope, function: Callable[..., Any], *args: Any) -> Operation:
    """Call `function` with a context for `scope`, then `args`; return its value once the scope has ended.

    Errors found at the end are raised, whatever the code returned.
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
