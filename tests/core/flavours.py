"""One text of a workflow for both engines: written as a coroutine, run as it is or as a plain function.

The synchronous flavour calls the real `Context`; only its results are dressed up to be awaited. What bodies get is
dressed up the same way, so that everything between a test's workflow and the engine is what users meet.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from dataclasses import replace
from typing import Any

from durable import Context, QueueMessage, workflow

Body = Callable[..., Awaitable[Any]]


class Flavour:
    """`flavour(workflow)` is what the harness starts."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_async = name == "async"

    def __repr__(self) -> str:
        return self.name

    def __call__(self, workflow: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        return workflow if self.is_async else _plain(workflow)

    def calling(self, operation: Body) -> Callable[..., Any]:
        """A workflow that returns what this one operation of its context does."""

        async def one(ctx: Any) -> Any:
            return await operation(ctx)

        return self(one)

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A step's function: as it is, or the coroutine function that does the same."""
        if not self.is_async:
            return function

        @functools.wraps(function)
        async def later(*args: Any) -> Any:
            return function(*args)

        return later


def declared(name: str) -> Callable[[Callable[..., Coroutine[Any, Any, Any]]], tuple[Any, Any]]:
    """Declare two workflows of one text: the synchronous one, and the asynchronous one as `name`_async."""

    def declare(body: Callable[..., Coroutine[Any, Any, Any]]) -> tuple[Any, Any]:
        plain, asynchronous = Flavour("sync")(body), Flavour("async")(body)
        return workflow(name=name)(plain), workflow(name=f"{name}_async")(asynchronous)

    return declare


def _plain(body: Body) -> Callable[..., Any]:
    @functools.wraps(body)
    def run(ctx: Context, *args: Any, **kwargs: Any) -> Any:
        coroutine: Any = body(_Awaited(ctx), *args, **kwargs)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError("a synchronous workflow awaited something that had not happened")

    del run.__wrapped__  # it is no coroutine function
    return run


class _Done:
    """A value that can be awaited."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, Any]:
        yield from ()
        return self.value


class _Awaited:
    """A `Context` whose operations are awaited."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.ctx, name)
        if name == "queue":
            return _AwaitedQueue(found)
        if name in {"run_id", "random", "now", "uuid4", "is_evicted", "eviction_reason", "logger"}:
            return found
        if name == "link":
            return lambda *args, **options: _Done(_AwaitedLink(found(*args, **options)))
        if name == "start_child":
            return lambda *args, **options: _Done(_AwaitedChild(found(*args, **options)))
        return lambda *args, **options: _Done(found(*args, **options))

    def try_block(self, name: str, body: Body, **options: Any) -> _Done:
        return _Done(self.ctx.try_block(name, _plain(body), **options))

    def loop(self, name: str, body: Body, **options: Any) -> _Done:
        return _Done(self.ctx.loop(name, _plain(body), **options))

    def join(self, name: str, branches: Mapping[str, Body], **options: Any) -> _Done:
        return _Done(self.ctx.join(name, {each: _plain(body) for each, body in branches.items()}, **options))

    def race(self, name: str, branches: Mapping[str, Body]) -> _Done:
        return _Done(self.ctx.race(name, {each: _plain(body) for each, body in branches.items()}))


class _AwaitedLink:
    def __init__(self, link: Any) -> None:
        self.url, self.expires_at = link.url, link.expires_at
        self._link = link

    def wait(self, *args: Any, **options: Any) -> _Done:
        return _Done(self._link.wait(*args, **options))


class _AwaitedChild:
    def __init__(self, child: Any) -> None:
        self.id = child.id
        self._child = child

    def result(self, *args: Any, **options: Any) -> _Done:
        return _Done(self._child.result(*args, **options))


class _AwaitedQueue:
    def __init__(self, queue: Any) -> None:
        self.queue = queue

    def next(self, *args: Any, **options: Any) -> _Done:
        return _Done(_answerable(self.queue.next(*args, **options)))

    def next_batch(self, *args: Any, **options: Any) -> _Done:
        return _Done([_answerable(each) for each in self.queue.next_batch(*args, **options)])

    def send(self, *args: Any, **options: Any) -> _Done:
        return _Done(self.queue.send(*args, **options))


def _answerable(message: QueueMessage[Any, Any]) -> QueueMessage[Any, Any]:
    complete, refuse = message._complete, message._refuse
    if complete is None or refuse is None:
        return message
    return replace(
        message,
        _complete=lambda message_id, response: _Done(complete(message_id, response)),
        _refuse=lambda message_id, reason: _Done(refuse(message_id, reason)),
    )
