"""Knowledge independent of a workflow: names outside of the project, the project's classes, and durable's operations.

Says which names read or change the world, which classes are Django models, and what calls return that lead outside of
the project. A name is dotted and absolute, as imports give it; builtins are below `builtins`. Of the operations it says
what the methods of contexts are called, and what their arguments mean. Nothing of durable is imported: the names of
operations and options are read in the files that define them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from durable.lint.modules import (
    NOTHING,
    Class,
    Display,
    External,
    Function,
    Instance,
    Message,
    NaiveMoment,
    Origin,
    OwnSet,
    Result,
    Value,
    is_class_name,
)

D = TypeVar("D", ast.FunctionDef, ast.ClassDef)

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

#: The kinds of services that a step calls; rows of the project's database do not count.
SERVICES: Final = frozenset({"network", "process"})

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
    """Return the forbidden effect of calling this name in workflow code, or None."""
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
    """Return True if the unknown name suggests that calling it moves money: `bank.charge`."""
    return "." in name and name.rpartition(".")[2] in _MONEY


def is_write(name: str) -> bool:
    """Return True if a call of this name posts, sends or charges."""
    last = name.rpartition(".")[2]
    if last in _WRITES:
        return True
    return last in _LAST_WRITES and service_of(name) in {"stripe", "mail", "twilio", "boto3", "kafka"}


_MAX_BASES: Final = 5
#: The methods of a model's instance that use the database.
ROW_METHODS: Final = frozenset({"save", "asave", "delete", "adelete", "refresh_from_db", "arefresh_from_db"})


def method_of(holder: Class | Instance, name: str) -> Function | None:
    """Return a method of a class or instance of the project, None if the project does not define it."""
    return _method_of(holder if isinstance(holder, Class) else holder.of, name, holder, 0)


def _method_of(owner: Class, name: str, holder: Class | Instance, depth: int) -> Function | None:
    for each in owner.node.body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name:
            decorators = {ast.unparse(decorator) for decorator in each.decorator_list}
            if decorators & {"property", "cached_property", "functools.cached_property"}:
                return None
            is_bound = "staticmethod" not in decorators and (
                isinstance(holder, Instance) or "classmethod" in decorators
            )
            return Function(owner.module, each, None, (holder,) if is_bound else (), is_method=True)
    if depth < _MAX_BASES:
        for base in owner.node.bases:
            parent = owner.module.dotted(base)
            found = _method_of(parent, name, holder, depth + 1) if isinstance(parent, Class) else None
            if found is not None:
                return found
    return None


def has_default_repr(value: object, *, is_repr: bool) -> bool:
    """Return True if the text of a value contains an address, which differs between processes.

    `is_repr`: the text is its `repr()`.
    """
    if isinstance(value, Function):
        return True
    if isinstance(value, External):
        return value.name == "builtins.object"
    return isinstance(value, Instance) and _is_plain(value.of, is_repr=is_repr, depth=0)


def _is_plain(owner: Class, *, is_repr: bool, depth: int) -> bool:
    """Return True if a class of the project certainly has no text of its own for its instances."""
    if owner.node.decorator_list or owner.node.keywords or depth > _MAX_BASES:
        return False
    says = {"__repr__"} if is_repr else {"__repr__", "__str__", "__format__"}
    if any(isinstance(each, ast.FunctionDef) and each.name in says for each in owner.node.body):
        return False
    bases = [owner.module.dotted(base) for base in owner.node.bases]
    return all(
        (isinstance(base, Class) and _is_plain(base, is_repr=is_repr, depth=depth + 1))
        or (isinstance(base, External) and base.name == "builtins.object")
        for base in bases
    )


def is_model(owner: Class, depth: int = 0) -> bool:
    """Return True if a class of the project is a Django model."""
    for base in owner.node.bases:
        parent = owner.module.dotted(base)
        if isinstance(parent, External) and parent.name in ("django.db.models.Model", "django.db.models.base.Model"):
            return True
        if isinstance(parent, Class) and depth < _MAX_BASES and is_model(parent, depth + 1):
            return True
    return False


_NONE: Final[frozenset[Origin]] = frozenset()
_MODELS: Final = frozenset({"django.contrib.auth.get_user_model", "django.apps.apps.get_model"})
_ORDERLESS: Final = frozenset({"sorted", "len", "sum", "min", "max", "any", "all", "set", "frozenset", "bool"})
_IN_ORDER: Final = frozenset({"list", "tuple", "iter", "enumerate", "next", "str", "repr", "map", "filter", "zip"})
_BUILTINS: Final = "builtins."
_DATETIME: Final = "datetime.datetime"
_NAIVE: Final = frozenset({f"{_DATETIME}.utcnow", f"{_DATETIME}.today"})
_NOW: Final = f"{_DATETIME}.now"
_POSITION_OF_ZONE: Final = 8  # of the parameters of datetime
_WITHOUT_VALUE: Final = frozenset({"threads", "sleep"})  # kinds of calls whose values come from nowhere


def called(name: str, node: ast.Call, args: Sequence[Result], origins: frozenset[Origin]) -> tuple[Result, str | None]:
    """Return the value of a call, and the kind of its effect on the world, None if nothing is known about that."""
    if name == "functools.partial" and args and isinstance(args[0].value, Function):
        function = args[0].value
        given = (*function.given, *(each.value for each in args[1:]))
        return Result(Function(function.module, function.node, function.env, given, is_partial=True), origins), None
    if name == _DATETIME and len(node.args) < _POSITION_OF_ZONE and _is_without_zone(node):
        return Result(NaiveMoment(), origins), None
    if name in _MODELS:
        return Result(External("django.db.models.Model"), origins), None
    kind = kind_of(name)
    if kind is not None and kind not in _WITHOUT_VALUE:
        origins |= {Origin(kind, name.removeprefix(_BUILTINS), node.lineno)}
    if name in _NAIVE or (name == _NOW and not node.args and not node.keywords):
        return Result(NaiveMoment(), origins), kind
    if name.startswith(_BUILTINS):
        return _builtin(name.removeprefix(_BUILTINS), node, args, origins), kind
    return Result(External(name) if is_class_name(name) or name == "contextlib.suppress" else None, origins), kind


def _builtin(name: str, node: ast.Call, args: Sequence[Result], origins: frozenset[Origin]) -> Result:
    first = args[0] if args else NOTHING
    if name in ("str", "repr", "format", "ascii") and has_default_repr(first.value, is_repr=name in ("repr", "ascii")):
        return Result(None, origins | {Origin("identity", shown(node), node.lineno)})
    if name == "object":
        return Result(External(f"{_BUILTINS}object"), origins)
    if name in _ORDERLESS:
        is_set = name in ("set", "frozenset")
        return Result(OwnSet(shown(node), node.lineno) if is_set else None, without_order(origins))
    if name in _IN_ORDER:
        ordered = _NONE.union(origins, *(in_order(each) for each in args))
        kept = first.value if name in ("list", "tuple", "iter") and isinstance(first.value, Message) else None
        return Result(kept, ordered)
    if name in ("hash", "id"):
        return Result(None, origins | {Origin("identity", shown(node), node.lineno)})
    return Result(None, origins)


def all_origins(results: Sequence[Result]) -> frozenset[Origin]:
    return _NONE.union(*(each.origins for each in results))


def in_order(result: Result) -> frozenset[Origin]:
    """Return the origins of a value that is iterated in order."""
    if isinstance(result.value, OwnSet):
        return result.origins | {Origin("set order", result.value.text, result.value.line)}
    return result.origins


def without_order(origins: frozenset[Origin]) -> frozenset[Origin]:
    """Return the origins of a value that does not depend on the order of its elements."""
    return frozenset(each for each in origins if each.kind != "set order")


def shown(node: ast.AST) -> str:
    """Return the text of an expression, shortened."""
    text = ast.unparse(node)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _is_without_zone(node: ast.Call) -> bool:
    zone = next((each.value for each in node.keywords if each.arg in ("tzinfo", None)), None)
    return zone is None or (isinstance(zone, ast.Constant) and zone.value is None)


MESSAGE_METHODS: Final = frozenset({"complete", "refuse"})

#: Members of a context that perform no operation.
PLAIN: Final = frozenset(
    {"run_id", "scheduled_for", "random", "is_evicted", "eviction_reason", "now", "uuid4", "logger", "queue", "status"}
)

STEPS: Final = frozenset({"step", "try_step"})
#: Operations whose second argument is a body, or a dict of bodies, with a scope of their own.
BODIES: Final = {"loop": "iteration", "try_block": "block", "join": "branch", "race": "branch"}
START_METHODS: Final = frozenset({"start", "astart", "start_many", "astart_many", "start_or_send", "astart_or_send"})


@cache
def methods_of(name: str) -> frozenset[str]:
    """Return the methods of a class of `durable.context` that perform operations."""
    [found] = _defined("context.py", ast.ClassDef, name)
    public = {each.name for each in found.body if isinstance(each, ast.FunctionDef) and not each.name.startswith("_")}
    return frozenset(public - PLAIN)


@cache
def named() -> frozenset[str]:
    """Return the operations whose first argument is a name that is unique in its scope."""
    return (methods_of("Context") - {"compensate", "tag", "publish"}) | {"next", "next_batch", "result"}


@cache
def start_options() -> frozenset[str]:
    """Return what `using` takes, as its definition says."""
    [using] = _defined("definitions.py", ast.FunctionDef, "using")
    return frozenset(each.arg for each in using.args.kwonlyargs)


@cache
def step_options() -> frozenset[str]:
    """Return what a step takes, as the definition of its policy says."""
    [policy] = _defined("core/options.py", ast.ClassDef, "StepPolicy")
    return frozenset(ast.unparse(each.target) for each in policy.body if isinstance(each, ast.AnnAssign))


def _defined(path: str, kind: type[D], name: str) -> list[D]:
    tree = ast.parse((Path(__file__).parents[1] / path).read_bytes())
    return [each for each in ast.walk(tree) if isinstance(each, kind) and each.name == name]


_STEP: Final = frozenset({"durable.step", "durable.definitions.step"})


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of an operation's call, as read."""

    node: ast.Call
    values: list[Result]
    keywords: dict[str, Result]

    @property
    def name(self) -> ast.expr | None:
        if self.node.args:
            return self.node.args[0]
        return next((each.value for each in self.node.keywords if each.arg == "name"), None)

    @property
    def name_result(self) -> Result:
        return self.of(0, "name")

    def of(self, position: int, keyword: str) -> Result:
        if position < len(self.values):
            return self.values[position]
        return self.keywords.get(keyword, NOTHING)


def bodies_of(result: Result) -> Iterator[Function]:
    """Yield the functions of a body, or of a dict of them."""
    values: list[Value] = result.value.values if isinstance(result.value, Display) else [result.value]
    yield from (each for each in values if isinstance(each, Function))


def step_definition(function: Function | None) -> tuple[str | None, dict[str, ast.expr]]:
    """Return the name and the options that `@step` gives a function: (None, {}) if it has none."""
    if function is None or isinstance(function.node, ast.Lambda):
        return None, {}
    for decorator in function.node.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        value = function.module.dotted(call.func if call is not None else decorator)
        if not isinstance(value, External) or value.name not in _STEP:
            continue
        options = {each.arg: each.value for each in call.keywords if each.arg} if call is not None else {}
        name = options.pop("name", None)
        if name is None:
            return function.node.name, options
        return (name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None), options
    return None, {}
