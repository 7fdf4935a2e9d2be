"""Worker processes: claim due runs, execute their passes, renew their leases, release the runs on shutdown.

How a run reaches a pass:

1. `supervisor.Supervisor`, the parent process of `manage.py durable_worker`, starts N worker processes and restarts
   those that die. `timer` runs in the parent: `Timer` notifies at deadlines, `Sweep` notifies of due runs that no
   worker was notified of, and deletes what is past its retention.
2. A worker process (`process`) serves RQ queues. Without Redis, `polling` reads the due queues from the parent's pipe.
3. An RQ job names a queue. `job.QueueJob` executes the queue's due runs one after the other.
   `concurrent.ConcurrentWorker` executes several at once: its `scheduler.Scheduler` decides which claimed run begins
   next, its `threads.ThreadPool` has the threads.
4. `executor.RunExecutor` claims runs, executes one pass of each (`durable.execution`), and releases or defers them.
5. `leases.LeaseManager` renews the leases in a thread of its own and evicts passes on shutdown or after a lost lease.

`rq`, `rq_jobs` and `rq_bookkeeping` adapt RQ's worker: which jobs it may run, and few round trips for each job.
`health` answers probes. Must not know what a workflow does.
"""
