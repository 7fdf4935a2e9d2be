"""The function of `@workflow(on_end=...)`, and the table of workflows that have one.

The store calls the function in the transaction that ends a run (`durable.store.ends`). The table lets the database's
own functions, and processes without the code, leave an end to a worker that has the code. `migrate` writes it, and so
does each worker at its start, which only adds to it: in a rolling deploy an old worker may lack a new function.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from django.apps import AppConfig
from django.db import connections
from django.utils.module_loading import import_string

from durable.conf import conf
from durable.core import registry
from durable.core.current import running_workflow
from durable.core.errors import EndFunctionError
from durable.core.names.renames import names_of_workflow
from durable.core.records import RunRecord
from durable.models import WorkflowEnd
from durable.operations import audit
from durable.operations.queries import RunInfo
from durable.store import Store

__all__ = ["CallAtEnd", "OnEnd", "declare", "synchronise_after_migrate"]

#: A function that is called for a run that has ended, or its dotted path.
OnEnd = Callable[[RunInfo], None] | str


class CallAtEnd:
    """The function of a workflow's `on_end`, given as itself or by its dotted path (`durable.core.registry`)."""

    __slots__ = ("_given", "name")

    def __init__(self, given: OnEnd) -> None:
        """Raise TypeError for what is neither a function of one argument nor a dotted path."""
        if isinstance(given, str):
            if not all(each.isidentifier() for each in given.split(".")) or "." not in given:
                raise TypeError(f'on_end is a function or its dotted path, as "shop.orders.ended", not {given!r}')
            self.name = given
        else:
            _check(given)
            self.name = _path_of(given)
        self._given = given

    def __repr__(self) -> str:
        return f"<on_end {self.name}>"

    def is_here(self) -> bool:
        """Return whether this process can import the function."""
        try:
            self.function()
        except ImportError:
            return False
        except TypeError:  # it is here, and is none
            pass
        return True

    def function(self) -> Callable[[RunInfo], None]:
        """Return the function. Raises ImportError, or TypeError for a path of something else."""
        if not isinstance(self._given, str):
            return self._given
        found = import_string(self._given)
        _check(found)
        return found  # type: ignore[no-any-return]  # imported by name, and checked

    def __call__(self, run: RunRecord, /) -> None:
        """Call the function with the run that has ended. It is the project's own code, whoever has ended the run."""
        with audit.as_code(), running_workflow(None), _restored(run):
            returned: Any = self.function()(RunInfo.of(run))
        if inspect.isawaitable(returned):
            if inspect.iscoroutine(returned):
                returned.close()
            raise EndFunctionError(_ASYNC.format(name=self.name))


def _restored(run: RunRecord) -> AbstractContextManager[None]:
    if run.carried is None:
        return nullcontext()
    from durable import carriers  # few processes need it

    return carriers.restored(run)


_ASYNC = (
    "{name} is async: on_end is called inside a transaction of the database, so it has to be a plain function; start "
    "a run in it to do more"
)


def _check(given: Any) -> None:
    if not callable(given):
        raise TypeError(f'on_end is a function or its dotted path, as "shop.orders.ended", not {given!r}')
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004  # an object with an async __call__
        raise TypeError(_ASYNC.format(name=_path_of(given)))
    try:
        inspect.signature(given).bind(None)
    except TypeError:
        raise TypeError(
            f"{_path_of(given)} has to take one argument, the run that has ended: write def ended(run: RunInfo) -> None"
        ) from None
    except ValueError:  # a builtin that does not say what it takes
        return


def _path_of(given: Any) -> str:
    name = getattr(given, "__qualname__", None) or type(given).__qualname__
    return f"{getattr(given, '__module__', None) or type(given).__module__}.{name}"


def declare(store: Store, *, known: frozenset[str] = frozenset(), removing: bool = False) -> frozenset[str]:
    """Record which workflows of this process have a function to call, under all their names; return these names.

    Nothing is written if all of them are `known`. With `removing`, also delete the rows of those that have none.
    """
    wanted = {name for each in registry.all() if each.on_end is not None for name in names_of_workflow(each.name)}
    others = {name for each in registry.all() for name in names_of_workflow(each.name)} - wanted if removing else set()
    if others or not wanted <= known:
        store.declare_ends(sorted(wanted), sorted(others))
    return frozenset(wanted)


def synchronise_after_migrate(sender: AppConfig, using: str, **_: Any) -> None:  # noqa: ARG001
    """Record it as the code says; a receiver of `post_migrate`."""
    if using == conf.DATABASE and WorkflowEnd._meta.db_table in connections[using].introspection.table_names():
        from durable import runtime

        declare(runtime.production().store, removing=True)
