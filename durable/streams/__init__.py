"""Streams: what a step emits while it runs, for those who read it now.

A step calls `current_step().emit(chunk)`; `handle.stream` and `handle.astream`, `durable.streams.reading.response` and
REST read. Chunks are not kept: `durable.notifier.chunks` sends them to a Redis stream that is capped and expires. The
truth is the step's recorded result, which ends each stream: a reader that comes late, or after Redis was flushed, gets
that alone. Without Redis all readers do.

A chunk is numbered by the run's fence, the attempt and its place in the attempt. A worker that has lost the run may go
on emitting; its fence is lower, so readers leave out what it emits. The end of a stream is sent after the commit of
the step's outcome, and lost with a worker that is killed in between, so readers also look into the database.
"""

from durable.streams.reading import Chunk, response

__all__ = ["Chunk", "response"]
