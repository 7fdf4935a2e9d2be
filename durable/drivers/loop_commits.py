"""Commits that the event loop makes itself: it sends the statement, and goes on with other tasks until the answer.

So a step whose function is a coroutine function needs no call in the thread that waits for the loop, which has the
connection. Owns the exchange of turns with that thread, and the wait for the answer. Must not know what is sent.

A save is sent from here only if all of this holds, otherwise it is handed over like any other call
(`durable.drivers.threads`):

- The step is awaited on the body's own loop. The code may have another one in a thread of its own.
- No fork is under way: branches gather their commits, in the thread.
- The thread makes no call, neither the engine's nor one of `sync_to_async`. Until the commit has ended, new ones wait.
- The loop can watch the socket: asyncio's and uvloop's can, unless the kernel refuses it one more. After the first
  refusal, the thread makes all commits of the body.
- The save writes entries of the history and nothing else: no messages, children, groups, slots, status or row of the
  run (`durable.execution.commits`).
- The session needs nothing before the statement: it is open, idle, in autocommit, observed by nobody, used by no other
  code since the last commit, and has the function prepared (`durable.store.postgres.sending`).

What follows depends on the answer. If it asks for nothing, the loop notes that the batch is committed. After anything
else, the batch and the answer go to the thread, which goes on as if it had sent the statement itself: after an error, a
broken connection, a prepared statement that the session has forgotten, a lost lease, a request of an operator.

The wait behaves as that for a call in the thread:

- A task that is cancelled while it waits is cancelled when the commit has ended.
- If a signal handler's exception interrupts the thread, that waits until the commit has ended (`LoopCommits.end`). A
  batch that was on its way to the thread then is lost, and the pass with it.
- A child that was forked meanwhile and comes back to the loop takes no answer: it is ended instead.
- A server that does not answer is noticed by the worker (`durable.worker.unanswered`), which ends the connection.

The socket is watched by a descriptor of its own, from the first commit until other code gets an answer on it or the
body ends: beginning and ending that for each commit would cost more than the rest of the exchange. If other code closes
the connection, the loop still learns of it, and never watches another socket that has got the number. The descriptor
stays open until the next connection is watched, or the body ends.
"""

from __future__ import annotations

import asyncio

from durable.drivers.host import SentSave, SentSaves
from durable.drivers.threads import HandedOver, LoopDelegate, Outcome, outcome_of


class LoopCommits:
    """The commits of one body, sent from the running event loop. `owner` has the connection."""

    def __init__(self, owner: LoopDelegate, saves: SentSaves | None) -> None:
        self._owner = owner
        self._saves = saves
        self._loop = asyncio.get_running_loop()
        can_watch = type(self._loop).add_reader is not asyncio.AbstractEventLoop.add_reader
        self._is_over = saves is None or not can_watch
        self._watched: int | None = None  # the descriptor
        self._save: SentSave | None = None  # under way
        self._ended: HandedOver[None]  # its outcome

    def leave(self) -> None:
        """Leave nothing on the loop. Called there when the body has ended."""
        self._is_over = True
        if self._save is None:  # of a task that is left behind
            self._watch(None)
            if self._saves is not None:
                self._saves.close()

    def end(self) -> None:
        """Begin no more commits, and wait for the one under way. Called by the owner."""
        self._is_over = True
        self._owner.leave()

    def begin(self) -> asyncio.Future[Outcome[None]] | None:
        """Begin to commit what the journal holds. Called on the body's loop.

        Return a future of the outcome, None if the save has to be handed over.
        """
        if self._is_over or self._save is not None or not self._owner.take_turn():
            return None
        try:
            if not self._is_over and self._is_sent():
                return self._ended
        finally:
            if self._save is None:
                self._owner.end_turn()
        return None

    def _is_sent(self) -> bool:
        save = None if self._saves is None else self._saves.open()
        if save is None:
            return False
        try:
            if not self._is_watched(save.fileno()) or not save.send():
                return False
            self._save, self._ended = save, HandedOver(loop=self._loop)
            if not save.is_flushed:
                self._loop.add_writer(save.fileno(), self._proceed)
            return True
        finally:
            if self._save is None:
                save.close()

    def _is_watched(self, socket: int) -> bool:
        try:
            self._watch(socket)
        except Exception:  # a loop may be anyone's; raised here, it would count as a failure of the step
            self._is_over = True
            return False
        return True

    def _watch(self, socket: int | None) -> None:
        if socket == self._watched:
            return
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
        self._watched = None
        if socket is not None:
            self._loop.add_reader(socket, self._proceed)
            self._watched = socket

    def _proceed(self) -> None:
        save = self._save
        if save is None:  # the answer is other code's
            self._watch(None)
            return
        was_flushed = save.is_flushed
        is_answered = save.proceed()
        if not was_flushed and (is_answered or save.is_flushed):
            self._loop.remove_writer(save.fileno())
        if not is_answered:
            return
        self._save = None
        save.close()
        self._owner.end_turn()
        if self._is_over:
            self.leave()
        if save.is_plain:
            self._ended.set_result(outcome_of(save.finish))
        else:
            self._owner.hand_over(self._ended, save.finish)
