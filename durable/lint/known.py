"""Knowledge of names outside of the project: which of them read or change the world.

Data only. A name is dotted and absolute, as imports give it; builtins are below `builtins`.
"""

from __future__ import annotations

from typing import Final

#: kind: names of functions. A name that ends with a dot is everything below it.
_CALLS: Final[dict[str, frozenset[str]]] = {
    "clock": frozenset(
        {
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter"),
            *("time.perf_counter_ns", "time.process_time", "time.localtime", "time.gmtime", "time.ctime"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
            *("django.utils.timezone.now", "django.utils.timezone.localtime", "django.utils.timezone.localdate"),
            "django.utils.timezone.localdate",
        }
    ),
    "dice": frozenset({"random.", "secrets.", "os.urandom", "numpy.random.", "django.utils.crypto.get_random_string"}),
    "uuid": frozenset({"uuid.uuid1", "uuid.uuid4", "uuid.uuid6", "uuid.uuid7"}),
    "environment": frozenset(
        {
            *("os.getenv", "os.environ.", "os.getpid", "os.getppid", "os.getcwd", "os.getlogin", "os.cpu_count"),
            *("os.uname", "os.getloadavg", "socket.gethostname", "socket.getfqdn", "platform.", "getpass.getuser"),
            "sys.argv.",
        }
    ),
    "files": frozenset(
        {
            *("builtins.open", "io.open", "os.open", "os.listdir", "os.scandir", "os.walk", "os.remove", "os.unlink"),
            *("os.rename", "os.replace", "os.mkdir", "os.makedirs", "os.rmdir", "os.stat", "os.chmod", "os.access"),
            *("os.path.exists", "os.path.isfile", "os.path.isdir", "os.path.getmtime", "os.path.getsize"),
            *("shutil.", "glob.", "tempfile.", "builtins.input"),
            "django.core.files.storage.default_storage.",
            *(
                f"pathlib.Path.{name}"
                for name in (
                    *("open", "read_text", "read_bytes", "write_text", "write_bytes", "exists", "is_file", "is_dir"),
                    *("iterdir", "glob", "rglob", "stat", "mkdir", "unlink", "rmdir", "rename", "replace", "touch"),
                    *("cwd", "home", "resolve"),
                )
            ),
        }
    ),
    "network": frozenset(
        {
            *("requests.", "httpx.", "aiohttp.", "urllib3.", "urllib.request.", "http.client.", "smtplib.", "ftplib."),
            *("socket.", "boto3.", "botocore.", "redis.", "stripe.", "twilio.", "paramiko.", "pymongo.", "kafka."),
            *("psycopg.connect", "psycopg2.connect", "sqlite3.connect", "elasticsearch.", "openai.", "anthropic."),
            *("django.core.mail.", "django.core.cache.cache.", "django.core.cache.caches."),
        }
    ),
    "process": frozenset({"subprocess.", "os.system", "os.popen", "os.spawnl", "os.execv", "os.fork"}),
    "threads": frozenset(
        {
            *("threading.Thread", "threading.Timer", "_thread.start_new_thread", "multiprocessing."),
            *("concurrent.futures.ThreadPoolExecutor", "concurrent.futures.ProcessPoolExecutor"),
            *("asyncio.gather", "asyncio.create_task", "asyncio.ensure_future", "asyncio.wait", "asyncio.wait_for"),
            *("asyncio.as_completed", "asyncio.TaskGroup", "asyncio.to_thread", "asyncio.run", "asyncio.timeout"),
            *("asgiref.sync.sync_to_async", "asgiref.sync.async_to_sync"),
        }
    ),
    "retry": frozenset({"durable.RetryLater"}),
    "sleep": frozenset({"time.sleep", "asyncio.sleep", "gevent.sleep"}),
    "query": frozenset(
        {
            *("django.shortcuts.get_object_or_404", "django.shortcuts.get_list_or_404"),
            *("django.shortcuts.aget_object_or_404", "django.shortcuts.aget_list_or_404"),
            *("django.db.connection.", "django.db.connections.", "django.db.transaction.atomic"),
            *("django.contrib.auth.authenticate", "django.contrib.sites.shortcuts.get_current_site"),
            *("durable.get_run", "durable.aget_run", "durable.runs_info", "durable.aruns_info"),
        }
    ),
}
#: Names below a whole package that reach no service: errors, values and settings of it.
_HARMLESS: Final = frozenset(
    {
        *("random.Random", "random.seed", "redis.exceptions.", "requests.exceptions.", "secrets.compare_digest"),
        *("httpx.Timeout", "httpx.URL", "httpx.Limits", "httpx.Headers", "httpx.QueryParams", "httpx.Auth"),
        *("httpx.BasicAuth", "httpx.Request", "requests.Request", "requests.auth.", "aiohttp.ClientTimeout"),
        *("aiohttp.BasicAuth", "urllib.request.Request", "urllib.request.quote", "urllib.request.unquote"),
        *("urllib.request.urljoin", "urllib.request.pathname2url", "socket.htons", "socket.ntohs", "socket.inet_aton"),
        *("socket.inet_ntoa", "shutil.Error", "glob.escape", "subprocess.list2cmdline", "stripe.error."),
        *("django.core.mail.EmailMessage", "django.core.mail.EmailMultiAlternatives", "botocore.exceptions."),
        *("platform.python_version_tuple",),
    }
)
#: Names that are read, not called.
_READS: Final = {"os.environ": "environment", "sys.argv": "environment"}

#: The kinds of services that a step calls; rows of the own database are none.
SERVICES: Final = frozenset({"network", "process"})
KINDS: Final = tuple(_CALLS)

_WRITES: Final = frozenset({"post", "patch", "send_mail", "send_mass_mail", "mail_admins", "mail_managers"})
_MONEY: Final = frozenset({"charge", "refund", "payout", "capture_payment", "create_charge", "create_payment"})
_LAST_WRITES: Final = frozenset(
    {"create", "send", "capture", "confirm", "refund", "send_message", "sendmail", "publish"}
)


def _is_below(name: str, known: frozenset[str]) -> bool:
    if name in known:
        return True
    parts = name.split(".")
    return any(".".join(parts[:count]) + "." in known for count in range(1, len(parts)))


def kind_of(name: str) -> str | None:
    """Return what a call of this name does that workflow code may not do, None if nothing is known."""
    if _is_below(name, _HARMLESS):
        return None
    if name.startswith("random.Random.") or name.rpartition(".")[2].endswith(("Error", "Exception")):
        return None
    return next((kind for kind, known in _CALLS.items() if _is_below(name, known)), None)


def reads(name: str) -> str | None:
    """Return the kind of a name that is read without a call: `os.environ`."""
    return _READS.get(name)


def service_of(name: str) -> str:
    """Return the service that a call of this name reaches, as far as the name tells: its package."""
    if name.startswith(("django.core.mail.", "smtplib.")):
        return "mail"
    return "cache" if name.startswith("django.core.cache.") else name.split(".")[0]


def acts(name: str) -> bool:
    """Return True if a name of something unknown says that a call of it moves money: `bank.charge`."""
    return "." in name and name.rpartition(".")[2] in _MONEY


def is_write(name: str) -> bool:
    """Return True if a call of this name posts, sends or charges."""
    last = name.rpartition(".")[2]
    if last in _WRITES:
        return True
    return last in _LAST_WRITES and service_of(name) in {"stripe", "mail", "twilio", "boto3", "kafka"}
