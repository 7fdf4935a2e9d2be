"""A notification as one command: a script in Redis enqueues the job unless a notification is pending.

Owns the key of the pending notification and the RQ job that the key names; both are written together or not at all. RQ
defines the parts of a job. They are read once for each queue, since only the id and the time differ between jobs.

After the first notification, the sender does not wait for the answer; the next notification reads it. So the caller of
`start()` does not wait for an answer that it would not act on. A notification sent while Redis goes down is lost. We
send the full script (EVAL, not EVALSHA): the reply is read later, so a NOSCRIPT error could not be handled.

`PipelinedSender` owns the connections on which a process sends without waiting: as many as threads send at once. The
sender reads each answer when it sends the next command on that connection, and notices only then that a command failed.
So the caller must be able to do without the last command. It does not decide what is sent.
"""

from __future__ import annotations

import os
import uuid
from dataclasses import dataclass
from typing import Any, Final
from weakref import WeakKeyDictionary

from redis import Redis
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError
from rq import Queue
from rq.job import Job, JobStatus
from rq.utils import now, utcformat

from durable.notifier import redis_clients


class PipelinedSender:
    """Sends on connections of its own, taken from the client's pool. Any thread may use it; a child process needs
    another.

    A sender takes a free connection, and puts it back when the command is sent, or closes it. So no lock stays taken
    and no thread reads another's answer, even if a signal handler raises anywhere: at worst the connection is lost.
    """

    __slots__ = ("_free", "_pool")

    def __init__(self, redis: Redis) -> None:
        self._pool = redis.connection_pool
        self._free: list[tuple[Any, bool]] = []  # each with True if the answer to its last command is unread

    def open(self) -> None:
        """Allow sending from now on.

        Call it after a command that was answered, so that errors of Redis were reported.
        """
        if not self._free:
            self._free.append((self._pool.get_connection(), False))

    def send(self, *command: Any) -> bool:
        """Send a command and return True if it was sent.

        If not, the caller has to send it in the usual way: `open` was not called yet, other threads are sending, Redis
        has closed the connection, or the previous command has failed. Raises RedisTimeoutError if the previous answer
        does not come.
        """
        try:
            connection, is_owed = self._free.pop()
        except IndexError:
            return False
        try:
            is_sent = self._send(command, connection, is_owed=is_owed)
        except BaseException as error:
            self._close(connection)
            if _is_lost(error):
                return False
            raise
        if is_sent:
            self._free.append((connection, True))
        else:
            self._close(connection)
        return is_sent

    def await_answers(self) -> None:
        """Read the answers that are owed, so that Redis has done what was sent before the caller's next command.

        Raises RedisTimeoutError if one does not come.
        """
        free, self._free = self._free, []
        for connection, is_owed in free:
            try:
                if is_owed:
                    connection.read_response()
            except BaseException as error:
                self._close(connection)
                if not _is_lost(error):
                    raise
            else:
                self._free.append((connection, False))

    def _send(self, command: tuple[Any, ...], connection: Any, *, is_owed: bool) -> bool:
        if is_owed:
            connection.read_response()
        if connection.can_read():  # only an end of file can be read now
            return False
        connection.send_command(*command)
        return True

    def _close(self, connection: Any) -> None:
        connection.disconnect()
        self._pool.release(connection)


def _is_lost(error: BaseException) -> bool:
    """Return True if the connection is lost, and False for what the caller has to know."""
    return isinstance(error, RedisError | OSError) and not isinstance(error, RedisTimeoutError)


JOB: Final = "durable.jobs.work"  # by name: enqueueing imports no worker code
KEY: Final = "durable:bell:{}"
LOOK: Final = "durable:look:{}"  # set: the job that acknowledges the notification searches all due runs
KEY_EXPIRY: Final = 60  # seconds; matters only where no sweep runs
FAILURE_TTL: Final = 3600  # seconds that a failed job of durable stays visible in RQ

# The commands that can fail come first: a script that fails is not undone.
_SCRIPT: Final = """
if ARGV[3] ~= "" then redis.call("set", KEYS[5], "1", "ex", {expiry}) end
local pending = redis.call("get", KEYS[1])
if pending and ARGV[3] == "" then return 0 end
if pending and redis.call("lpos", KEYS[2], pending) then
  redis.call("set", KEYS[1], pending, "ex", {expiry})
  return 0
end
redis.call("rpush", KEYS[2], ARGV[1])
redis.call("hset", KEYS[3], "created_at", ARGV[2], "enqueued_at", ARGV[2], {fields})
redis.call("sadd", KEYS[4], KEYS[2])
redis.call("set", KEYS[1], ARGV[1], "ex", {expiry})
return 1
"""

# A job that a worker has taken is no longer in the RQ queue, and one that the sweep asked to look must run.
_TAKE_BACK: Final = """
local pending = redis.call("get", KEYS[1])
if not pending or redis.call("exists", KEYS[3]) == 1 or redis.call("lrem", KEYS[2], 1, pending) == 0 then return 0 end
redis.call("del", KEYS[1], ARGV[1] .. pending)
return 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueueNotifier:
    """Enqueues the jobs of one RQ queue."""

    queue: Queue
    key: str
    script: str
    sender: PipelinedSender


_notifiers: dict[str, _QueueNotifier] = {}
_senders: WeakKeyDictionary[Redis, PipelinedSender] = WeakKeyDictionary()  # one for all queues of a client


def _forget() -> None:
    """Forget the connections: in a child process, they belong to the parent."""
    _notifiers.clear()
    _senders.clear()


os.register_at_fork(after_in_child=_forget)


def notify(name: str, *, force: bool = False) -> None:
    """Enqueue a job of `name` unless a notification is pending; with `force`, unless the job is also still in the RQ
    queue. A waiting job then keeps its key, so that a queue without workers has only one job.

    It is a single command, so that a retry after a broken connection does no harm. The first notification, each forced
    one, and each one after a failure or while a Redis is away wait for the answer. Raises KeyError for a queue that
    RQ_QUEUES lacks, and RedisError.
    """
    notifier = _notifier(name)
    job_id = uuid.uuid4().hex
    keys = (notifier.key, notifier.queue.key, Job.key_for(job_id), Queue.redis_queues_keys, LOOK.format(name))
    arguments = (job_id, utcformat(now()), "force" if force else "")
    if (
        force
        or redis_clients.is_any_away()
        or not notifier.sender.send("EVAL", notifier.script, len(keys), *keys, *arguments)
    ):
        notifier.queue.connection.eval(notifier.script, len(keys), *keys, *arguments)
        notifier.sender.open()


def clear(name: str) -> bool:
    """Delete the pending notification; return True if a forced one was among them.

    One round trip. Raises RedisError.
    """
    together = redis_clients.client(name).pipeline(transaction=False)
    together.delete(KEY.format(name))
    together.delete(LOOK.format(name))
    _, looks = together.execute()
    return bool(looks)


def take_back(name: str) -> bool:
    """Delete the pending notification with its job, unless a worker has taken the job or the sweep has forced it.

    Return True if it is deleted. The caller then has to query for due runs, as the job would have. One round trip.
    Raises KeyError for a queue that RQ_QUEUES lacks, and RedisError.
    """
    notifier = _notifier(name)
    notifier.sender.await_answers()  # Redis may read this connection before the one with the notification
    queue = notifier.queue
    keys = (notifier.key, queue.key, LOOK.format(name))
    return bool(queue.connection.eval(_TAKE_BACK, len(keys), *keys, Job.redis_job_namespace_prefix))


def _notifier(name: str) -> _QueueNotifier:
    queue = redis_clients.rq_queue(name)
    notifier = _notifiers.get(name)
    if notifier is None or notifier.queue is not queue:
        sender = _senders.setdefault(queue.connection, PipelinedSender(queue.connection))
        notifier = _notifiers[name] = _QueueNotifier(
            queue=queue, key=KEY.format(name), script=_script(queue), sender=sender
        )
    return notifier


def _script(queue: Queue) -> str:
    job = queue.create_job(
        JOB,
        args=(queue.name,),
        timeout=-1,
        result_ttl=0,
        failure_ttl=FAILURE_TTL,
        description=f"durable: {queue.name}",
    )
    fields = {**job.to_dict(), "status": JobStatus.QUEUED.value, "origin": queue.name}
    lasting = {key: value for key, value in fields.items() if value != "" and key not in ("created_at", "enqueued_at")}
    texts = ", ".join(_quoted(part) for field in lasting.items() for part in field)
    return _SCRIPT.format(fields=texts, expiry=KEY_EXPIRY)


def _quoted(value: object) -> str:
    """Return the value as a Lua string literal."""
    data = value if isinstance(value, bytes) else str(value).encode()
    return '"' + "".join(chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\{byte:03d}" for byte in data) + '"'
