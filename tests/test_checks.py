"""The system checks: each finds what it is for, is silent otherwise, and has a hint."""

from collections.abc import Iterator
from dataclasses import fields
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from cryptography.fernet import Fernet
from django.apps import apps
from django.conf import settings as django_settings
from django.core.checks import CheckMessage, run_checks
from django.core.signals import request_started
from django.db import connection, connections
from django.db.backends.postgresql.psycopg_any import IsolationLevel
from django.db.models import Model
from django.test import Client, override_settings

from durable import Context
from durable.checks import configuration, database
from durable.codec import JsonCodec
from durable.conf import Values
from durable.core import registry
from durable.core.registry import Registry
from durable.crypto import FernetCodec
from tests.api.serving import asgi_server
from tests.support.definitions import Definition, one, other

JSON_QUEUE = {"URL": "redis://127.0.0.1:1/0", "SERIALIZER": "rq.serializers.JSONSerializer"}
#: Settings whose value is a name: what has no such thing says the name.
_NAMES_OF_THINGS = {"CODEC", "DATABASE", "READ_DATABASE", "QUEUE", "REDACT", "API_RUNS", "ADMIN_RUNS", "RETENTION"}
DATABASES: dict[str, dict[str, Any]] = {"default": {}, "archive": {}}  # only looked at, never connected to


@pytest.fixture(autouse=True)
def workflows(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry with nothing in it but what the test registers."""
    empty = Registry()
    monkeypatch.setattr(registry, "registry", empty)
    monkeypatch.setattr(registry, "clashes", empty.clashes)
    return empty


def ids(messages: list[CheckMessage]) -> list[str | None]:
    assert all(message.hint for message in messages), "every finding needs a hint"
    return [message.id for message in messages]


def test_the_project_itself_is_in_order() -> None:
    assert run_checks(tags=["durable"]) == []


def test_the_checks_of_durable_ask_no_database_even_if_one_is_named() -> None:
    """From Django 6.1 on, a command that names none checks all; those that ask it have Django's tag for that alone."""
    assert run_checks(tags=["durable"], databases=["default"]) == []


class TestSettings:
    def test_a_typo_is_answered_with_the_nearest_key(self) -> None:
        with override_settings(DURABLE={"LAESE": 30, "max_crashes": 3}):
            messages = configuration.check_settings()
        assert ids(messages) == ["durable.E002", "durable.E002"]
        assert '"LEASE"' in str(messages[0].hint)
        assert '"MAX_CRASHES"' in str(messages[1].hint)

    @pytest.mark.parametrize("given", [["LEASE"], "LEASE", None])
    def test_no_dict(self, given: object) -> None:
        with override_settings(DURABLE=given):
            assert ids(configuration.check_settings()) == ["durable.E001"]

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("LEASE", "30"),
            ("LEASE", 0),
            ("LEASE", True),
            ("LEASE", timedelta(seconds=-1)),
            ("SHORT_SLEEP", -0.1),
            ("SWEEP_INTERVAL", None),
            ("MAX_PAYLOAD_BYTES", 0),
            ("MAX_PAYLOAD_BYTES", 1.5),
            ("MAX_BRANCH_THREADS", 0),
            ("CLAIM_BATCH", "10"),
            ("CODEC", JsonCodec),
            ("QUEUE", ""),
            ("DATABASE", 1),
            ("RETENTION", 0),
            ("RETENTION", "30 days"),
            ("API_MAX_WAITING", -1),
            ("API_MAX_WAITING", True),
            ("API_WORKFLOWS", "shop.fulfil"),
            ("API_WORKFLOWS", [1]),
            ("API_RUNS", ""),
            ("ADMIN_RUNS", ""),
            ("API_RUNS", "durable.nowhere.runs"),
            ("ADMIN_RUNS", "durable.nowhere.runs"),
            ("API_RUNS", len),
            ("ADMIN_RUNS", len),
            ("ENCRYPTION_KEYS", "one key, and no list"),
            ("ENCRYPTION_KEYS", [""]),
            ("BIND_PAYLOADS", True),
            ("BIND_PAYLOADS", "on"),
        ],
    )
    def test_wrong_values(self, key: str, value: object) -> None:
        with override_settings(DURABLE={key: value}):
            messages = configuration.check_settings()
        assert ids(messages) == ["durable.E003"]
        assert key in messages[0].msg

    @pytest.mark.parametrize("key", [each.name for each in fields(Values)])
    @pytest.mark.parametrize("secret", ["kQm3SECRETKEY", b"kQm3SECRETKEY", ["kQm3SECRETKEY", 1], {"kQm3SECRETKEY": 1}])
    def test_no_value_that_may_be_a_secret_is_shown(self, key: str, secret: object) -> None:
        with override_settings(DURABLE={key: secret}):
            found = run_checks(tags=["durable"])
        messages = [
            f"{each.msg} {each.hint}" for each in found if key not in _NAMES_OF_THINGS or each.id == "durable.E003"
        ]
        assert not [each for each in messages if "SECRETKEY" in each]

    def test_a_number_is_shown(self) -> None:
        with override_settings(DURABLE={"LEASE": -3}):
            assert "not -3." in configuration.check_settings()[0].msg
        with override_settings(DURABLE={"METRICS_TOKEN": 4711}):
            assert "4711" not in configuration.check_settings()[0].msg

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("LEASE", timedelta(seconds=3)),
            ("LEASE", 0.5),
            ("SHORT_SLEEP", 0),
            ("DIVERGENCE_GRACE", timedelta(0)),
            ("RETENTION", None),
            ("RETENTION", timedelta(days=30)),
            ("RETENTION", {"completed": 60, "failed": None}),
            ("ENCRYPTION_KEYS", ("a", b"b")),
        ],
    )
    def test_right_values(self, key: str, value: object) -> None:
        with override_settings(DURABLE={key: value}):
            assert configuration.check_settings() == []


class TestRetention:
    @pytest.mark.parametrize(
        ("retention", "advice"),
        [
            ({"complete": 60}, '"completed"'),
            ({"completed": 0}, "timedelta"),
            ({"completed": "30 days"}, "timedelta"),
            ({"audit": True}, "timedelta"),
            ({"workflows": ["shop.fulfil"]}, "shop.fulfil"),
            ({"workflows": {"shop.fulfil": {"fialed": 60}}}, '"failed"'),
            ({"workflows": {"shop.fulfil": {"failed": -1}}}, "timedelta"),
        ],
    )
    def test_what_cannot_be_read_is_reported_with_what_would_be_right(self, retention: object, advice: str) -> None:
        with override_settings(DURABLE={"RETENTION": retention}):
            messages = configuration.check_retention()
        assert ids(messages) == ["durable.E009"]
        assert advice in str(messages[0].hint)

    def test_a_workflow_that_there_is_not(self, workflows: Registry) -> None:
        workflows.register(Definition("shop.fulfil"))
        retention = {"completed": 60, "workflows": {"shop.fulfill": None, "shop.fulfil": timedelta(days=1)}}
        with override_settings(DURABLE={"RETENTION": retention}):
            messages = configuration.check_retention()
        assert ids(messages) == ["durable.W086"]
        assert '"shop.fulfil"' in str(messages[0].hint)

    @pytest.mark.parametrize(
        ("count", "last"),
        [
            (500, "RETENTION names 495 more unknown workflows."),
            (6, 'RETENTION names no workflow: "old.workflow_5".'),
        ],
    )
    def test_of_many_workflows_that_there_are_not_the_first_are_named(self, count: int, last: str) -> None:
        with override_settings(DURABLE={"RETENTION": {"workflows": {f"old.workflow_{n}": 60 for n in range(count)}}}):
            messages = configuration.check_retention()
        assert ids(messages) == ["durable.W086"] * 6
        assert messages[-1].msg == last


class Deaf:
    def encode(self, value: object) -> str:
        return str(value)


class Lossy(JsonCodec):
    def decode(self, text: str, *args: Any, **kwargs: Any) -> Any:
        return {}


class PlacelessFernet(FernetCodec):
    def encode(self, value: object, *, what: str = "value") -> str:  # type: ignore[override]  # as written before places
        return super().encode(value, what=what)


class Picky:
    def __init__(self) -> None:
        raise RuntimeError("no key")


class TestCodec:
    @pytest.mark.parametrize(
        ("path", "found"),
        [
            ("durable.codec.JsonCodec", []),
            ("durable.codec.JsonKodec", ["durable.E004"]),
            ("nothing", ["durable.E004"]),
            ("tests.test_checks.Picky", ["durable.E004"]),
            ("tests.test_checks.Deaf", ["durable.E005"]),
            ("tests.test_checks.Lossy", ["durable.E005"]),
            ("durable.crypto.FernetCodec", ["durable.E005"]),
        ],
    )
    def test_what_is_found(self, path: str, found: list[str]) -> None:
        with override_settings(DURABLE={"CODEC": path}):
            assert ids(configuration.check_codec()) == found

    @pytest.mark.parametrize(
        ("path", "bind", "found"),
        [
            ("durable.crypto.FernetCodec", "require", []),
            ("durable.crypto.FernetCodec", "accept", []),
            ("durable.crypto.FernetCodec", "off", []),
            ("durable.codec.JsonCodec", "accept", ["durable.E013"]),
            ("durable.codec.JsonCodec", "off", []),
            ("tests.test_checks.PlacelessFernet", "require", ["durable.E005"]),
            ("tests.test_checks.PlacelessFernet", "off", []),
        ],
    )
    def test_binding(self, path: str, bind: str, found: list[str]) -> None:
        keys = [Fernet.generate_key().decode()] if "Fernet" in path else []
        with override_settings(DURABLE={"CODEC": path, "ENCRYPTION_KEYS": keys, "BIND_PAYLOADS": bind}):
            assert ids(configuration.check_codec()) == found

    def test_keys_that_nothing_uses(self) -> None:
        with override_settings(DURABLE={"ENCRYPTION_KEYS": ["k"]}):
            assert ids(configuration.check_codec()) == ["durable.W085"]


class TestQueues:
    def test_the_default_queue_is_missing(self) -> None:
        with override_settings(RQ_QUEUES={"low": JSON_QUEUE}):
            messages = configuration.check_queues()
        assert ids(messages) == ["durable.E007"]
        assert "RQ_QUEUES has low" in str(messages[0].hint)

    def test_a_workflows_queue_is_missing(self, workflows: Registry) -> None:
        workflows.register(Definition("shop.a", queue="hihg"))
        with override_settings(RQ_QUEUES={"default": JSON_QUEUE, "high": JSON_QUEUE}):
            messages = configuration.check_queues()
        assert ids(messages) == ["durable.E007"]
        assert 'did you mean "high"?' in str(messages[0].hint)
        assert "shop.a" in messages[0].msg

    def test_no_queues_at_all(self) -> None:
        with override_settings(RQ_QUEUES=None):
            messages = configuration.check_queues()
            assert ids(messages) == ["durable.E007"]
            assert 'A project without Redis says DURABLE = {"REDIS": False}.' in str(messages[0].hint)
            assert configuration.check_serializers() == configuration.check_rqworker() == []

    @pytest.mark.parametrize(
        ("serializer", "found"),
        [("rq.serializers.JSONSerializer", []), ("json", []), ("pickle", ["durable.W081"]), (None, ["durable.W081"])],
    )
    def test_the_serializer(self, serializer: str | None, found: list[str]) -> None:
        queue = {**JSON_QUEUE, "SERIALIZER": serializer}
        with override_settings(RQ_QUEUES={"default": queue, "someone else's": {"URL": ""}}):
            assert ids(configuration.check_serializers()) == found

    def test_the_serializer_of_a_queue_that_the_same_worker_serves(self) -> None:
        there = {"URL": "redis://127.0.0.1:1/0"}
        queues = {"default": JSON_QUEUE, "mails": there, "elsewhere": {"URL": "redis://127.0.0.1:1/1"}}
        with override_settings(RQ_QUEUES=queues):
            [found] = configuration.check_serializers()
        assert (found.id, found.msg) == ("durable.W081", 'RQ_QUEUES["mails"] has no JSON serializer.')
        assert 'DURABLE["OTHER_JOBS"]' in (found.hint or "")

    @pytest.mark.parametrize(
        ("rq", "found"),
        [
            ({"WORKER_CLASS": "durable.rq_workers.Worker"}, []),
            ({"WORKER_CLASS": "durable.rq_workers.SimpleWorker"}, []),
            ({"WORKER_CLASS": "rq.Worker"}, ["durable.W082"]),
            ({"WORKER_CLASS": "not.there"}, ["durable.W082"]),
            ({}, ["durable.W082"]),
            (None, ["durable.W082"]),
        ],
    )
    def test_rqworker(self, rq: object, found: list[str]) -> None:
        with override_settings(RQ=rq):
            assert ids(configuration.check_rqworker()) == found


def test_two_workflows_of_one_name(workflows: Registry) -> None:
    workflows.register(Definition("shop.x", one))
    workflows.register(Definition("shop.y", one))
    assert configuration.check_workflows() == []
    workflows.register(Definition("shop.x", other))
    (message,) = configuration.check_workflows()
    assert message.id == "durable.E008"
    assert message.hint
    assert f"{one.__module__}.one" in message.msg
    assert f"{other.__module__}.other" in message.msg


class Astray:
    """A router that sends everything to another database."""

    def db_for_read(self, model: type[Model], **hints: object) -> str:
        return "archive"

    db_for_write = db_for_read


class Unmigrated:
    def allow_migrate(self, db: str, app_label: str, **hints: object) -> bool:
        return False


class TestNetwork:
    ALL: ClassVar = {
        "connect_timeout": 3,
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 10_000,
    }

    @pytest.mark.parametrize(
        ("host", "options", "missing"),
        [
            ("db.internal", {}, list(ALL)),
            ("10.0.0.7", {**ALL, "sslmode": "require"}, []),
            ("db.internal", {"connect_timeout": 3, "keepalives_idle": 5}, list(ALL)[2:]),
            ("db.internal", {"service": "shop"}, []),
            ("localhost", {}, []),
            ("127.0.0.1", {}, []),
            ("/run/postgresql", {}, []),
            ("", {}, []),
        ],
    )
    def test_options_that_a_vanished_host_needs_are_named(
        self, monkeypatch: pytest.MonkeyPatch, host: str, options: dict[str, object], missing: list[str]
    ) -> None:
        found = {"ENGINE": "django.db.backends.postgresql", "HOST": host, "OPTIONS": options}
        monkeypatch.setattr(database, "connections", SimpleNamespace(settings={"default": found}))
        messages = database.check_network_options()
        assert [each.id for each in messages] == ["durable.W095"] * bool(missing)
        assert database.missing_network_options() == missing
        for each in messages:
            assert all(name in each.msg for name in missing)

    def test_other_databases_have_no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = {"ENGINE": "django.db.backends.sqlite3", "HOST": "", "OPTIONS": {}}
        monkeypatch.setattr(database, "connections", SimpleNamespace(settings={"default": found}))
        assert database.check_network_options() == []


class TestTheFirstRequest:
    """Of a process: it shows whether the process serves ASGI."""

    @pytest.fixture(autouse=True)
    def new_process(self) -> Iterator[None]:
        database.look_at_first_request()
        yield
        request_started.disconnect(dispatch_uid="durable.checks.first_request")

    @pytest.mark.postgres
    @pytest.mark.parametrize(("age", "warnings"), [(60, 1), (None, 1), (0, 0)])
    def test_under_asgi_kept_connections_are_logged_once(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, age: int | None, warnings: int
    ) -> None:
        monkeypatch.setitem(connections.settings["default"], "CONN_MAX_AGE", age)
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", age)
        with asgi_server() as address:
            statuses = [httpx.get(f"{address}/nowhere", timeout=60).status_code for _ in range(3)]
        assert statuses == [404, 404, 404]
        said = [each.getMessage() for each in caplog.records if each.name == "durable.store"]
        assert len(said) == warnings
        assert all(f'"default" keeps them: its CONN_MAX_AGE is {age}' in each for each in said)

    def test_under_wsgi_nothing_is_said(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, client: Client
    ) -> None:
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 60)
        assert client.get("/nowhere").status_code == 404
        assert "CONN_MAX_AGE" not in caplog.text
        assert not request_started.disconnect(dispatch_uid="durable.checks.first_request"), "a later request is asked"

    @pytest.mark.parametrize("vendor", ["sqlite", "mysql"])
    def test_other_databases_are_not_meant(self, monkeypatch: pytest.MonkeyPatch, vendor: str) -> None:
        monkeypatch.setitem(connection.settings_dict, "CONN_MAX_AGE", 60)
        assert database.keeps_connections() is (connection.vendor == "postgresql")
        monkeypatch.setattr(connection, "vendor", vendor)
        assert not database.keeps_connections()

    def test_an_unknown_database_is_left_to_its_check(self) -> None:
        with override_settings(DURABLE={"DATABASE": "defualt"}):
            assert not database.keeps_connections()


class TestSqlite:
    @pytest.mark.parametrize(
        ("options", "expected"),
        [({}, ["durable.W088"]), ({"timeout": 20}, ["durable.W088"]), ({"transaction_mode": "immediate"}, [])],
    )
    def test_transactions_that_do_not_wait_are_found(
        self, monkeypatch: pytest.MonkeyPatch, options: dict[str, object], expected: list[str]
    ) -> None:
        connection = SimpleNamespace(vendor="sqlite", settings_dict={"OPTIONS": options})
        monkeypatch.setattr(configuration, "connections", {"default": connection})
        assert ids(configuration.check_sqlite()) == expected

    def test_other_databases_have_row_locks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        connection = SimpleNamespace(vendor="postgresql", settings_dict={"OPTIONS": {}})
        monkeypatch.setattr(configuration, "connections", {"default": connection})
        assert configuration.check_sqlite() == []

    def test_the_models_have_no_warnings_for_a_database_without_covering_indexes(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection.features, "supports_covering_indexes", False)
        models = apps.get_app_config("durable").get_models()
        assert [found for model in models for found in model.check(databases=["default"])] == []


def test_a_distribution_with_a_package_of_the_same_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert configuration.check_namesake() == []
    about = tmp_path / "durable_rules-2.0.28.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: durable_rules\nVersion: 2.0.28\n")
    monkeypatch.syspath_prepend(tmp_path)
    [message] = configuration.check_namesake()
    assert message.id == "durable.E023"
    assert "durable-rules 2.0.28 is installed" in message.msg


class TestDatabase:
    def test_an_unknown_alias(self) -> None:
        with override_settings(DURABLE={"DATABASE": "defualt"}):
            messages = configuration.check_database()
            assert configuration.check_router() == configuration.check_atomic_requests() == []
        assert ids(messages) == ["durable.E006"]
        assert 'Did you mean "default"?' in str(messages[0].hint)

    def test_an_unknown_alias_of_a_replica(self) -> None:
        with override_settings(DURABLE={"READ_DATABASE": "defualt"}):
            messages = configuration.check_database()
        assert ids(messages) == ["durable.E006"]
        assert 'DURABLE["READ_DATABASE"], "defualt"' in messages[0].msg

    @pytest.mark.parametrize(
        ("options", "found"),
        [
            ({}, []),
            ({"isolation_level": IsolationLevel.READ_COMMITTED}, []),
            ({"isolation_level": IsolationLevel.REPEATABLE_READ}, ["durable.E011"]),
            ({"isolation_level": IsolationLevel.SERIALIZABLE.value}, ["durable.E011"]),
        ],
    )
    def test_isolation(self, options: dict[str, Any], found: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(connection.settings_dict, "OPTIONS", options)
        expected = found if connection.vendor == "postgresql" else []
        assert ids(configuration.check_isolation()) == expected

    def test_a_database_where_nothing_is_committed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert configuration.check_autocommit() == []
        monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
        [message] = configuration.check_autocommit()
        assert (message.id, "nothing" in message.msg) == ("durable.E028", True)

    @pytest.mark.parametrize(
        ("mine", "atomic", "found"),
        [
            ("default", {"default": True, "archive": False}, []),
            ("default", {"default": False, "archive": False}, []),
            ("default", {"default": True, "archive": True}, ["durable.W083"]),
            ("archive", {"default": True, "archive": False}, ["durable.W083"]),
        ],
    )
    def test_atomic_requests_elsewhere(
        self, mine: str, atomic: dict[str, bool], found: list[str], monkeypatch: pytest.MonkeyPatch, settings: Any
    ) -> None:
        databases = {alias: {"ATOMIC_REQUESTS": value} for alias, value in atomic.items()}
        monkeypatch.setattr(django_settings, "DATABASES", databases)
        settings.DURABLE = {"DATABASE": mine}
        assert ids(configuration.check_atomic_requests()) == found

    @pytest.mark.parametrize("router", [Astray(), Unmigrated()])
    def test_a_router_that_leads_astray(self, router: object) -> None:
        assert configuration.check_router() == []
        with override_settings(DATABASE_ROUTERS=[router]):
            messages = configuration.check_router()
        assert ids(messages) == ["durable.W084"]
        assert "Run" in messages[0].msg

    def test_no_router_for_another_alias(self, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(django_settings, "DATABASES", DATABASES)
        settings.DURABLE = {"DATABASE": "archive"}
        assert ids(configuration.check_router()) == ["durable.W084"]


@pytest.mark.parametrize(
    ("base", "found"),
    [
        ("http://shop.example", ["durable.E026"]),
        ("http://10.0.0.7:8000", ["durable.E026"]),
        ("http://localhost.example", ["durable.E026"]),
        ("https://shop.example", []),
        ("http://localhost:8000", []),
        ("http://shop.localhost", []),
        ("http://127.0.0.1:8000", []),
        ("http://[::1]:8000", []),
        ("", []),
    ],
)
def test_links_are_https_but_on_this_machine(base: str, found: list[str]) -> None:
    """A runner of tests sets DEBUG to False, in a project of development too."""
    with override_settings(DEBUG=False, DURABLE={"BASE_URL": base}):
        assert ids(configuration.check_links()) == found
    with override_settings(DEBUG=True, DURABLE={"BASE_URL": base}):
        assert ids(configuration.check_links()) == []


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({}, []),
        ({"DURABLE": {"BASE_URL": ""}}, ["the address at which the project is reached"]),
        ({"ROOT_URLCONF": "tests.people.no_urls"}, ["durable.hooks.urls"]),
    ],
)
def test_workflows_with_links_need_an_address(
    workflows: Registry, settings: dict[str, Any], missing: list[str]
) -> None:
    def pays(ctx: Context) -> None:
        ctx.link("paid")

    workflows.register(Definition("tests.checks.pays", pays))
    with override_settings(**settings):
        found = configuration.check_link_addresses()
        assert [each for each in run_checks(tags=["durable"]) if each.id == "durable.W098"] == []
    assert ids(found) == ["durable.W098"] * len(missing)
    assert all(part in str(each.hint) for part, each in zip(missing, found, strict=True))
    assert all("ctx.link() would stop the run" in each.msg for each in found)
