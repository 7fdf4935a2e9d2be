"""Execute one pass of one run: its commits, its evictions and its database connections.

- `passes` drives the engine through one pass, and connects the parts of a pass with the drivers.
- `environment` is what the engine is given: clock, codec, limits. It also asks a pass to end, and logs and
  sends what happens.
- `commits` writes the journal's changes, `queries` reads the history, the inbox and other runs.
- `commit_retry` finds out whether an unanswered commit happened, and repeats it if not.
- `connections` restores database connections around passes, rolls back transactions that user code left open, and
  ends child processes that return into a pass.

Must not claim runs or renew leases: `durable.worker` does.
"""
