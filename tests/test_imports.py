"""Imports point one way, and importing `durable` needs no configured Django.

Reads the source of every module of the app with `ast`, imports inside functions included; what stands under
`if TYPE_CHECKING:` is for the type checker alone and is not counted. A module that no layer claims fails the test: say
in LAYERS where it belongs.
"""

import ast
import functools
import re
import subprocess
import sys
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeGuard

import pytest

import durable
import durable.errors
import durable.operations

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = "durable"
FACADE: Final = "the package itself"
ANYTHING: Final = "*"

# package: (the modules in it, the packages that it may import beside itself). ARCHITECTURE.md prints the same rule.
LAYERS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "core": (("core",), ()),
    "drivers": (("drivers",), ("core",)),
    "settings": (
        ("conf", "carriers", "declared_limits", "mistakes", "signals", "tag_hashes", "link_tokens"),
        ("core",),
    ),
    "schedules": (("schedules",), ("core",)),
    "lint": (("lint",), ()),
    "codec": (("codec", "crypto"), ("settings", "core")),
    "models": (("models",), ("schedules", "codec", "settings", "core")),
    "store": (("store",), ("guard", "models", "settings", "core")),
    "notifier": (("notifier",), ("settings", "core")),
    "guard": (("guard",), ("lint", "notifier", "codec", "settings", "core")),
    "runtime": (("runtime",), ("store", "notifier", "codec", "settings", "core")),
    "renames": (("renames", "migrations"), ("runtime", "store", "notifier", "models", "codec", "settings", "core")),
    "instrumentation": (("instrumentation",), ("settings", "core")),
    "context": (("context",), ("drivers", "core")),
    "retention": (("retention",), ("models", "settings", "core")),
    "rollups": (("rollups",), ("models", "settings", "core")),
    "marks": (("marks",), ("notifier", "models", "settings", "core")),
    "execution": (
        ("execution",),
        ("runtime", "context", "drivers", "guard", "instrumentation", "store", "codec", "settings", "core"),
    ),
    "operations": (
        ("operations", "handles", "definitions", "shortcuts", "triggers", "errors", "streams", "people"),
        (
            *("runtime", "retention", "marks", "instrumentation", "store", "notifier", "models", "schedules", "codec"),
            *("settings", "core"),
        ),
    ),
    "workflows": (("workflows",), ("operations", "context", "core")),
    "worker": (
        ("worker", "jobs", "rq_workers"),
        (
            *("operations", "execution", "runtime", "drivers", "retention", "rollups", "marks", "store", "notifier"),
            *("models", "settings", "core"),
        ),
    ),
    "inspection": (
        ("inspection",),
        (
            *("operations", "runtime", "retention", "rollups", "marks", "store", "notifier", "models", "schedules"),
            *("codec", "settings", "core"),
        ),
    ),
    "replay_check": (
        ("replay_check",),
        (
            *("inspection", "execution", "renames", "runtime", "context", "drivers", "guard", "store", "models"),
            *("codec", "settings", "core"),
        ),
    ),
    "histories": (
        ("histories",),
        ("replay_check", "inspection", "runtime", "store", "models", "codec", "settings", "core"),
    ),
    "listings": (
        ("listings",),
        ("inspection", "operations", "runtime", "notifier", "models", "schedules", "settings", "core"),
    ),
    "surfaces": (
        (
            "admin",
            "alerts",
            "cli",
            "api",
            "hooks",
            "management",
            "tasks",
            "metrics",
            "log_capture",
            "logs",
            "checks",
            "testing",
            "pytest_plugin",
            "apps",
            "hooks",
            "templatetags",
        ),
        (ANYTHING,),
    ),
    "contrib": (("contrib",), (ANYTHING,)),
    # Only inside functions: see test_importing_durable_needs_no_configured_django.
    FACADE: (("",), (ANYTHING,)),
}

# Imports against the direction that stay, each with its reason: (module, imported module).
ALLOWED: Final[dict[tuple[str, str], str]] = {}

# Modules that import each other for the type checker alone, each with its reason. None do at run time.
CIRCLES_FOR_TYPES: Final = [
    # a start gives a handle; get_run(of=) takes a workflow; a workflow takes a context, which starts workflows as
    # children
    frozenset({"durable.context", "durable.definitions", "durable.handles"}),
]

# What may import RQ: `durable.worker.rq` and its modules beside it, and what enqueues.
ADAPTERS_OF_RQ: Final = ("durable.worker.rq", "durable.notifier.")

# Operators' surfaces: they read rows, and change them through operations only.
CLOSED: Final = ("admin", "api", "cli", "hooks", "listings", "management")
WRITES: Final = frozenset(
    {
        *("save", "asave", "create", "acreate", "bulk_create", "abulk_create", "bulk_update", "abulk_update"),
        *("get_or_create", "aget_or_create", "update_or_create", "aupdate_or_create"),
        *("update", "aupdate", "delete", "adelete"),
    }
)
MANAGERS: Final = frozenset({"objects", "_default_manager", "_base_manager"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    module: str
    line: int
    imported: str


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES: Final = {module_name(path): path for path in sorted((ROOT / PACKAGE).rglob("*.py"))}


def layer_of(module: str) -> str | None:
    inner = module.partition(".")[2]
    for layer, (prefixes, _) in LAYERS.items():
        if any(inner == prefix or (prefix and inner.startswith(prefix + ".")) for prefix in prefixes):
            return layer
    return None


def dotted(node: ast.expr) -> str:
    """The name that stands there, with its dots; nothing if it is another expression."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def is_for_types_only(node: ast.AST) -> TypeGuard[ast.If]:
    return isinstance(node, ast.If) and dotted(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node that can have an effect at run time."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        children = node.orelse if is_for_types_only(node) else list(ast.iter_child_nodes(node))
        yield from children
        waiting.extend(children)


def imports_of(module: str, source: str, *, known: frozenset[str] = frozenset(SOURCES)) -> list[Import]:
    """What a module imports, each by the name of a module: `from durable import conf` is `durable.conf`."""
    found = []
    for node in nodes(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [Import(module=module, line=node.lineno, imported=alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative imports hide the direction; write the full name"
            assert node.module is not None
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                imported = submodule if submodule in known else node.module
                found.append(Import(module=module, line=node.lineno, imported=imported))
        elif isinstance(node, ast.Call) and dotted(node.func) in {"import_module", "importlib.import_module"}:
            argument = node.args[0] if node.args else None
            if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                found.append(Import(module=module, line=node.lineno, imported=argument.value))
    return found


def imports_between(sources: Mapping[str, str], *, types_too: bool) -> dict[str, set[str]]:
    """Return which of these modules each of them imports; `types_too`: also those for the type checker alone."""
    known = frozenset({*SOURCES, *sources})
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        read = source.replace("if TYPE_CHECKING:", "if True:") if types_too else source
        graph[module] = {found.imported for found in imports_of(module, read, known=known)}
    return {module: (imported & sources.keys()) - {module} for module, imported in graph.items()}


def circles_of(graph: Mapping[str, Collection[str]]) -> list[frozenset[str]]:
    """Return the sets of modules that import each other, directly or through others of the set."""
    reached = {module: reachable(graph, module) for module in graph}
    circles = {frozenset(other for other in reached[module] if module in reached[other]) for module in graph}
    return sorted((circle for circle in circles if circle), key=sorted)


def reachable(graph: Mapping[str, Collection[str]], module: str) -> set[str]:
    found: set[str] = set()
    waiting = list(graph[module])
    while waiting:
        if (each := waiting.pop()) not in found:
            found.add(each)
            waiting += graph[each]
    return found


def wrong_direction(found: Import) -> str | None:
    if found.imported.partition(".")[0] != PACKAGE or (found.module, found.imported) in ALLOWED:
        return None
    layer, target = layer_of(found.module), layer_of(found.imported)
    if layer is None or target is None or layer == target or {target, ANYTHING}.intersection(LAYERS[layer][1]):
        return None
    return f"{found.module}:{found.line} ({layer}) imports {found.imported} ({target})"


@functools.cache
def imports() -> tuple[Import, ...]:
    return tuple(found for module, path in SOURCES.items() for found in imports_of(module, path.read_text()))


def is_import_of_rq_elsewhere(found: Import) -> bool:
    return found.imported.partition(".")[0] == "rq" and not found.module.startswith(ADAPTERS_OF_RQ)


def writes_of(source: str) -> list[str]:
    """Calls that change rows through a manager, and calls of save() and delete() on anything but `super()`."""
    found = []
    for node in nodes(ast.parse(source)):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITES):
            continue
        owner = node.func.value
        through_manager = any(isinstance(part, ast.Attribute) and part.attr in MANAGERS for part in ast.walk(owner))
        on_instance = node.func.attr in {"save", "asave", "delete", "adelete"} and not node.args
        if through_manager or on_instance:
            found.append(f"line {node.lineno}: {ast.unparse(node.func)}")
    return found


def test_every_module_has_a_layer() -> None:
    assert [module for module in SOURCES if layer_of(module) is None] == []


def test_imports_point_one_way() -> None:
    assert [wrong for found in imports() if (wrong := wrong_direction(found))] == []


@pytest.mark.parametrize(("types_too", "circles"), [(False, []), (True, CIRCLES_FOR_TYPES)])
def test_no_modules_import_each_other(types_too: bool, circles: list[frozenset[str]]) -> None:
    sources = {module: path.read_text() for module, path in SOURCES.items()}
    assert circles_of(imports_between(sources, types_too=types_too)) == circles


def test_the_core_imports_the_standard_library_only() -> None:
    strangers = [
        f"{found.module}:{found.line} imports {found.imported}"
        for found in imports()
        if layer_of(found.module) == "core"
        and not found.imported.startswith("durable.core")
        and found.imported.partition(".")[0] not in sys.stdlib_module_names
    ]
    assert strangers == []


def test_the_read_side_knows_only_what_verbs_declare() -> None:
    found = {each.imported for each in imports() if layer_of(each.module) == "inspection"}
    assert {each for each in found if layer_of(each) == "operations"} == {
        "durable.operations.audit",
        "durable.operations.verbs",
    }
    names = {
        f"{node.module}.{alias.name}"
        for module, path in SOURCES.items()
        if layer_of(module) == "inspection"
        for node in nodes(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and layer_of(node.module or "") == "operations"
        for alias in node.names
    }
    assert names == {
        "durable.operations.audit.ACTIONS",
        *(f"durable.operations.verbs.{each}" for each in ("BULK_ACTIONS", "DECISIONS", "HALTS", "RUN_VERBS", "STOPS")),
    }


def test_operators_surfaces_write_through_operations_only() -> None:
    found = {
        module: writes
        for module, path in SOURCES.items()
        if module.partition(".")[2].startswith(CLOSED) and (writes := writes_of(path.read_text()))
    }
    assert found == {}


def test_only_the_adapters_import_rq() -> None:
    assert [f"{found.module}:{found.line}" for found in imports() if is_import_of_rq_elsewhere(found)] == []


def test_nothing_of_durable_imports_the_parts_for_other_packages() -> None:
    """A project names those that it uses: nobody else has their packages."""
    found = [each for each in imports() if each.imported.startswith("durable.contrib")]
    assert [f"{each.module}:{each.line}" for each in found if layer_of(each.module) != "contrib"] == []


def test_no_test_module_imports_another() -> None:
    """What several of them need is in `tests/support` or in a module beside them."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sorted((ROOT / "tests").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and re.search(r"\.test_\w+$", f".{node.module}")
    ]
    assert found == []


def test_importing_durable_needs_no_configured_django() -> None:
    code = (
        "import sys, durable; "
        "assert not hasattr(sys.modules.get('django.conf'), 'settings') or not "
        "sys.modules['django.conf'].settings.configured; "
        "assert not [name for name in sys.modules if name in ('redis', 'rq', 'django_rq', 'psycopg')]; "
        "assert not hasattr(durable, 'Nothing') and not hasattr(durable, 'NoError') and durable.JoinError; "
        "print(*durable.__all__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert {"workflow", "Context", "CriticalError", "get_run"} <= set(done.stdout.split())


def test_the_root_has_what_workflow_code_uses() -> None:
    errors = [name for name in durable.__all__ if name.endswith("Error")]
    assert errors == ["CriticalError", "RollbackError"]
    assert len(durable.__all__) <= 40
    assert durable.StepExhaustedError is durable.errors.StepExhaustedError
    assert durable.acting_as is durable.operations.acting_as
    assert not hasattr(durable, "start")


def test_no_module_hides_a_public_name() -> None:
    """Importing `durable.x` binds `x` in the package, in place of a function that `from durable import x` means."""
    code = (
        "import importlib, types, django; django.setup(); import durable\n"
        f"for name in {sorted(SOURCES)}:\n"
        "    public = name.removeprefix('durable.')\n"
        "    if public in durable.__all__:\n"
        "        importlib.import_module(name)\n"
        "print(*(name for name in durable.__all__ if isinstance(getattr(durable, name), types.ModuleType)))"
    )
    environment = {"PATH": "/usr/bin:/bin", "DJANGO_SETTINGS_MODULE": "project.settings"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_all_checks_run_in_a_process_that_does_not_discover_the_admin() -> None:
    """Workers are such: Django's check of the tags imports them first, before any module of the admin."""
    code = (
        "import sys; sys.argv[:] = ['manage.py', 'durable_worker']\n"
        "import django; django.setup()\n"
        "assert 'durable.admin' not in sys.modules, 'something else has imported the admin'\n"
        "import durable.templatetags.durable_admin\n"
        "from django.core.checks import run_checks, ERROR\n"
        "print(*(each for each in run_checks() if each.level >= ERROR))"
    )
    environment = {"PATH": "/usr/bin:/bin", "DJANGO_SETTINGS_MODULE": "project.settings"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_a_command_does_not_import_what_other_subcommands_need() -> None:
    """Each would cost a tenth of a second of CPU, whatever the subcommand is."""
    code = (
        "import sys; sys.argv[:] = ['manage.py', 'durable', 'list']\n"
        "import django; django.setup()\n"
        "import durable.management.commands.durable\n"
        "print(*sorted({'.'.join(each.split('.')[:2]) for each in sys.modules if each.startswith('durable.')}))"
    )
    environment = {"PATH": "/usr/bin:/bin", "DJANGO_SETTINGS_MODULE": "project.settings"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert {"durable.cli", "durable.operations"} <= imported
    unneeded = {f"durable.{each}" for each in ("lint", "replay_check", "histories", "admin", "api", "testing")}
    assert imported & unneeded == set()


def test_the_core_alone_does_not_bring_django_in() -> None:
    modules = [name for name in SOURCES if layer_of(name) == "core"]
    code = f"import sys, {', '.join(modules)}; print(*(name for name in sys.modules if name.startswith('django')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


class TestTheTestItself:
    """A rule that nothing can break is no rule."""

    @pytest.mark.parametrize(
        ("module", "source"),
        [
            ("durable.core.steps", "from durable.drivers import sync"),
            ("durable.core.steps", "def late():\n    from durable import conf"),
            ("durable.models.run", "import durable.operations"),
            ("durable.core.registry", "def start():\n    from durable.operations import start"),
            ("durable.models.run", "class Run:\n    def start(self):\n        from durable.operations import start"),
            ("durable.store.orm", "from durable.worker import Worker"),
            ("durable.drivers.sync", "from durable.conf import conf"),
            ("durable.operations", "from durable.admin import site"),
            ("durable.operations", "from durable import Context"),
            ("durable.models", "import importlib\nimportlib.import_module('durable.operations')"),
        ],
    )
    def test_a_wrong_import_is_found(self, module: str, source: str) -> None:
        known = frozenset({*SOURCES, "durable.drivers", "durable.drivers.sync", "durable.conf"})
        assert any(wrong_direction(found) for found in imports_of(module, source, known=known))

    @pytest.mark.parametrize(
        ("module", "source"),
        [
            ("durable.admin.runs", "from durable.operations import cancel"),
            ("durable.operations", "from durable.store import base"),
            (
                "durable.store.orm",
                "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from durable import worker",
            ),
        ],
    )
    def test_a_right_import_is_left_alone(self, module: str, source: str) -> None:
        assert [wrong for found in imports_of(module, source) if (wrong := wrong_direction(found))] == []

    @pytest.mark.parametrize(
        ("graph", "circles"),
        [
            ({"a": "b", "b": "c", "c": ""}, []),
            ({"a": "b", "b": "a"}, ["ab"]),
            ({"a": "b", "b": "c", "c": "a", "d": "a"}, ["abc"]),
            ({"a": "b", "b": "ac", "c": "d", "d": "c"}, ["ab", "cd"]),
        ],
    )
    def test_a_circle_is_found(self, graph: dict[str, str], circles: list[str]) -> None:
        assert circles_of(graph) == [frozenset(each) for each in circles]

    @pytest.mark.parametrize(
        ("module", "source", "is_wrong"),
        [
            ("durable.worker.leases", "def late():\n    from rq.worker import BaseWorker", True),
            ("durable.inspection.workers", "import rq", True),
            ("durable.worker.rq_jobs", "from rq import get_current_job", False),
            ("durable.notifier.enqueue", "from rq.job import Job", False),
            ("durable.jobs", "from durable.worker import rq", False),
        ],
    )
    def test_an_import_of_rq_is_found(self, module: str, source: str, *, is_wrong: bool) -> None:
        assert [is_import_of_rq_elsewhere(found) for found in imports_of(module, source)] == [is_wrong]

    @pytest.mark.parametrize(
        ("source", "writes"),
        [
            ("Run.objects.filter(pk=1).update(state='failed')", 1),
            ("run.save(update_fields=['state'])", 1),
            ("run.delete()", 1),
            ("Run._default_manager.create(id='x')", 1),
            ("context.update(title='x')", 0),
            ("Run.objects.filter(pk=1).first()", 0),
            ("operations.cancel(run)", 0),
        ],
    )
    def test_a_write_is_found(self, source: str, writes: int) -> None:
        assert len(writes_of(source)) == writes

    def test_an_import_for_types_closes_a_circle(self) -> None:
        sources = {
            "durable.admin.page": "if TYPE_CHECKING:\n    from durable.admin.site import Site",
            "durable.admin.site": "from durable.admin import page",
        }
        assert circles_of(imports_between(sources, types_too=True)) == [frozenset(sources)]
        assert circles_of(imports_between(sources, types_too=False)) == []
