"""Child processes of tests that are forked from a prepared process, not started from nothing.

A session starts hundreds of commands. Each would import Django, RQ and durable anew: half a second of CPU. Here a
server imports them once and forks for each command, as `multiprocessing`'s forkserver does. What it forks is a process
of its own and a child of the process that asked for it: its pid, its exit status, its signals and its files are those
of an executed one, and `subprocess.Popen` treats it alike.

* `client` takes the starts of `subprocess.Popen` that can be served, and leaves the others to Python.
* `server` is the process that forks.
* `program` makes a fork what the executed command would be.
* `protocol` is what client and server say to each other.

Only commands that get `PYTHONPATH` from `tests.support.child_path` are forked: those that agree to the `sitecustomize`
there. A test of a start itself leaves that directory out, and its command is executed.
"""
