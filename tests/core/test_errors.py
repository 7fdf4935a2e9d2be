"""The tree of errors: its middle classes can be caught, and the tree in the module's docstring is the real one."""

import re
from collections.abc import Iterator

import pytest

import durable
from durable import (
    ContractError,
    CriticalError,
    DurableError,
    HistoryDivergedError,
    OperationDeniedError,
    OperationError,
    PayloadError,
    RunFailedError,
    RunNotFoundError,
    StaleRunError,
    WorkflowError,
)
from durable.core import errors
from durable.core.control_flow import ControlFlow, Park


def drawn() -> Iterator[tuple[str, str]]:
    """Each error of the tree in the docstring with its parent."""
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"    ((?:[│ ]   )*)(?:[├└]── )?(\w+Error|RetryLater)\b", line)
        if found is None:
            continue
        depth = (len(line) - len(line.lstrip(" │├└─"))) // 4 - 1
        path[depth:] = [found[2]]
        yield found[2], path[depth - 1] if depth else ""


def test_the_docstring_draws_the_tree() -> None:
    public = [getattr(durable, name) for name in durable.__all__]
    real = {
        found.__name__: "" if found is DurableError else found.__mro__[1].__name__
        for found in public
        if isinstance(found, type) and issubclass(found, DurableError)
    }
    assert dict(drawn()) == real


@pytest.mark.parametrize(
    ("error", "middle"),
    [
        (CriticalError, WorkflowError),
        (HistoryDivergedError, ContractError),
        (PayloadError, ContractError),
        (RunNotFoundError, OperationError),
        (StaleRunError, OperationError),
        (OperationDeniedError, OperationError),
    ],
)
def test_an_error_has_one_middle_class(error: type[Exception], middle: type[Exception]) -> None:
    assert [each for each in (WorkflowError, ContractError, OperationError) if issubclass(error, each)] == [middle]


def test_the_end_of_a_run_is_no_refusal_of_a_verb() -> None:
    assert not issubclass(RunFailedError, OperationError)


def test_control_flow_is_no_error() -> None:
    assert not issubclass(ControlFlow, Exception)
    with pytest.raises(Park):
        raise Park(None)
