"""Worker processes: claim due runs, execute their passes, renew their leases, release the runs on shutdown.

- `supervisor.Supervisor` is the parent process of `manage.py durable_worker`: it starts N worker processes and restarts
  those that die. Its `timer.Timer` notifies at deadlines; its `timer.Sweep` notifies of due runs that were missed.
  Without Redis its `listener.PostgresListener` hears of due runs. `embedded` has a web process start it.
- `process.run_worker` is such a worker process: signals, the pipe from the parent, and one `loop.WorkerLoop`.
- `WorkerLoop`, for each queue with due runs, until a stop is requested: asks the Scheduler how many runs to claim, has
  the RunExecutor claim them, adds them to the Scheduler, and has a pool execute them.
- `scheduler.Scheduler` is pure: how many to claim, who is next, who has waited too long, who must be alone.
- `loop.InlinePool` executes one pass at a time in the main thread, `loop.ThreadPool` several at once.
- `executor.RunExecutor` claims runs, executes one pass of each (`durable.execution`), and notifies of its outcome.
- `leases.LeaseManager` owns the claimed runs: it renews their leases, evicts passes, releases and defers runs.
- `rq` and the other `rq_*` modules adapt RQ, and only they and `durable.notifier` import it: signals in, heartbeats
  out. `rq_jobs.work` is what an RQ job does. Without Redis, `loop` reads the due queues from the parent's pipe.

`health` answers probes. Must not know what a workflow does.
"""
