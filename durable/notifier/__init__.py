"""Notify workers and timers that something is due.

Owns what durable sends to Redis, or without Redis to PostgreSQL and within one process:

- `notify` is the entry: it notifies workers of a queue, now or at a deadline, and never fails.
- `enqueue` enqueues the RQ job of a notification, in one command, and clears its key.
- `channel` sends a notification through PostgreSQL where durable uses no Redis.
- `redis_clients` has the clients with short timeouts, and notes which Redis is away.
- `wakeups` has the notices within a process, and says whether a test mutes them.
- `registry` records when a sweep last ran, and reads which workers RQ has registered.

Must not decide what is due: the database does.
"""
