"""The harness in async tests: each method that executes or steers runs has an async twin.

Passes run in the thread in which Django runs all synchronous code of the test, and async workflows beside the test on
its own event loop.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from asgiref.sync import async_to_sync

from durable.operations.common import run_sync

if TYPE_CHECKING:
    from django.http.response import HttpResponse

    from durable.core.results import Verdict
    from durable.handles import Handle
    from durable.testing import Harness, Pass


class AsyncTwins:
    """The methods of a `Harness`, awaited."""

    async def astart(self: Harness, workflow: Any, *args: Any, id: str | None = None, **kwargs: Any) -> Handle:  # type: ignore[misc]  # Harness alone has this base
        """`start`, from an async test."""
        return await run_sync(lambda: self.start(workflow, *args, id=id, **kwargs))

    async def asend(self: Harness, run_id: str | Handle, queue: str, body: Any = None, *, id: str | None = None) -> str:  # type: ignore[misc]  # as above
        """`send`, from an async test."""
        return await run_sync(lambda: self.send(run_id, queue, body, id=id))

    async def apublish(self: Harness, event: str, body: Any = None, *, key: str, id: str | None = None) -> str:  # type: ignore[misc]  # as above
        """`publish`, from an async test."""
        return await run_sync(lambda: self.publish(event, body, key=key, id=id))

    async def aopen_link(  # type: ignore[misc]  # as above
        self: Harness, link_url: str, body: bytes | str = b"", headers: Mapping[str, str] | None = None
    ) -> HttpResponse:
        """`open_link`, from an async test."""
        return await run_sync(lambda: self.open_link(link_url, body, headers))

    async def aanswer(  # type: ignore[misc]  # as above
        self: Harness, run_id: str | Handle, location: str, data: Any = None, *, by: Any, comment: str = ""
    ) -> Verdict | None:
        """`answer`, from an async test."""
        return await run_sync(lambda: self.answer(run_id, location, data, by=by, comment=comment))

    async def arun(self: Harness, run_id: str | Handle) -> Pass:  # type: ignore[misc]  # as above
        """`run`, from an async test."""
        return await run_sync(self.run, run_id)

    async def apeek(self: Harness, run_id: str | Handle) -> Pass:  # type: ignore[misc]  # as above
        """`peek`, from an async test."""
        return await run_sync(self.peek, run_id)

    async def arun_due(self: Harness) -> int:  # type: ignore[misc]  # as above
        """`run_due`, from an async test."""
        return await run_sync(self.run_due)

    async def asettle(self: Harness) -> None:  # type: ignore[misc]  # as above
        """`settle`, from an async test."""
        await run_sync(self.settle)

    async def afinish(self: Harness, run_id: str | Handle) -> Pass:  # type: ignore[misc]  # as above
        """`finish`, from an async test."""
        return await run_sync(self.finish, run_id)

    async def acrash_everywhere(  # type: ignore[misc]  # as above
        self: Harness,
        workflow: Any,
        *args: Any,
        check: Callable[[], Any] | None = None,
        drive: Callable[[Harness, Handle], Any] | None = None,
        **kwargs: Any,
    ) -> int:
        """`crash_everywhere`, from an async test; `check` and `drive` may be coroutine functions."""
        return await run_sync(
            lambda: self.crash_everywhere(workflow, *args, check=_plain(check), drive=_plain(drive), **kwargs)
        )

    async def aassert_deterministic(  # type: ignore[misc]  # as above
        self: Harness,
        workflow: Any,
        *args: Any,
        drive: Callable[[Harness, Handle], Any] | None = None,
        **kwargs: Any,
    ) -> int:
        """`assert_deterministic`, from an async test; `drive` may be a coroutine function."""
        return await run_sync(lambda: self.assert_deterministic(workflow, *args, drive=_plain(drive), **kwargs))


def require_no_loop(verb: str) -> None:
    """Raise RuntimeError if an event loop runs in this thread; name the twin of `Harness.verb` to await."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    if "DJANGO_ALLOW_ASYNC_UNSAFE" in os.environ:  # an event loop of another tool, such as Playwright's
        return
    raise RuntimeError(
        f"Harness.{verb}() was called while an event loop runs in this thread, and a pass would block it: write "
        f"`await harness.a{verb}(...)`"
    )


def _plain(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
    """Wrap a coroutine function as a plain function, for a thread that an event loop waits for."""
    return async_to_sync(function) if inspect.iscoroutinefunction(function) else function
