"""Execute one pass of one run: its commits, its evictions and its database connections.

- `passes` drives the engine through one pass and commits its batches.
- `open_transactions` rolls back transactions that user code left open.
- `commit_retry` finds out whether an unanswered commit happened, and repeats it if not.
- `eviction` tells a pass that it has to end.
- `connections` restores database connections around passes; `forks` ends child processes that return into a pass.

Must not claim runs or renew leases: `durable.worker` does.
"""
