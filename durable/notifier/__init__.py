"""Notify workers and timers that something is due.

Owns what durable sends to Redis, and the notices within one process where there is no Redis:

- `notify` is the entry: it notifies workers of a queue, now or at a deadline, and never fails.
- `enqueue` enqueues the RQ job of a notification, in one command; `pipelining` sends it without waiting for the answer.
- `redis_clients` has the clients with short timeouts, `wakeups` the notices within a process.
- `silence` says whether notifications are muted by a test; `sweep_heartbeat` records when a sweep last ran.
- `worker_registry` reads which workers RQ has registered.

Must not decide what is due: the database does.
"""
