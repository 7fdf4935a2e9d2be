"""The study: three hosts with etcd, Patroni, PostgreSQL and Sentinels, two of them with a Redis; HAProxy and PgBouncer.

    workers of the first kind  -> PgBouncer (transactions) -> HAProxy (asks Patroni for the primary) -> the primary
    workers of the second kind -> all three servers, by libpq's target_session_attrs -> the primary

Each way into a host, and each way of Patroni out of it, leads through a `Network`, so that a host can vanish without a
reset. Standbys come in by a way of their own, so that they can lag.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import psycopg
import redis

from project.servers import free_port, unprivileged_user
from tests.support import http
from tests.support.networks import Network
from tests.support.postgres import oldest_postgres
from tests.tools.hosts.servers import Server, until

NAMES: Final = ("one", "two", "three")
GATE: Final = "127.0.0.20"  # HAProxy and PgBouncer
DATABASE: Final = "durable"
MASTER: Final = "durable"  # as Sentinels name it

#: Patroni's timing, in seconds: the least that it allows for `ttl`, and 2 * retry_timeout + loop_wait below it.
TIMING: Final = {"ttl": 20, "loop_wait": 2, "retry_timeout": 5}

#: libpq's limits, as docs/guides/deploying.md has them.
LIMITS: Final = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 2,
    "keepalives_count": 3,
    "tcp_user_timeout": 10_000,
}


class Host:
    """One with etcd, Patroni, PostgreSQL and a Sentinel, and perhaps with a Redis."""

    def __init__(self, name: str, address: str, directory: Path) -> None:
        self.name = name
        self.address = address
        self.directory = directory
        self.data = directory / "data"
        self.servers: dict[str, Server] = {}
        self.ports = {each: free_port() for each in ("etcd", "peers", "postgres", "rest", "redis", "sentinel")}
        self.doors: dict[str, Network] = {}

    def open_door(self, name: str, target: tuple[str, int]) -> None:
        self.doors[name] = Network(target, address=self.address, port=free_port())

    def place(self, door: str) -> str:
        """The address of a door, as configurations have it."""
        return f"{self.address}:{self.doors[door].port}"

    @property
    def dsn(self) -> str:
        """How to connect without any door."""
        return f"host={self.address} port={self.ports['postgres']} user=postgres connect_timeout=3"

    def kill(self) -> None:
        """End all that it runs, by SIGKILL. Its connections are reset."""
        for each in self.servers.values():
            each.kill()

    def freeze(self) -> None:
        """Stop all that it runs. Its connections stay, and nobody answers."""
        for each in self.servers.values():
            each.freeze()

    def thaw(self) -> None:
        for each in self.servers.values():
            each.thaw()

    def vanish(self) -> None:
        """Let nothing in or out: what it runs goes on, and no connection is closed. Its etcd and Redis stop."""
        for door in self.doors.values():
            door.vanish()
        for name in self.servers.keys() - {"patroni"}:
            self.servers[name].freeze()

    def come_back(self) -> None:
        for door in self.doors.values():
            door.come_back()
        self.thaw()

    def start(self) -> None:
        for each in self.servers.values():
            each.start()


class Cluster:
    """All of it; a context manager. `environment` is for processes that use it, by the way `environment` names."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.directory = Path(tempfile.mkdtemp(prefix="durable-hosts-"))
        self._password = secrets.token_urlsafe(16)
        user = unprivileged_user()
        self._own(self.directory, user)
        self.hosts = []
        for number, name in enumerate(NAMES):
            directory = self.directory / name
            directory.mkdir()
            self._own(directory, user)
            self.hosts.append(Host(name, f"127.0.0.{11 + number}", directory))
        programs = oldest_postgres()
        assert programs is not None
        self.programs = programs
        self._gate_ports = {each: free_port() for each in ("haproxy", "pgbouncer")}
        self.gate: dict[str, Server] = {}

    @staticmethod
    def _own(directory: Path, user: tuple[int, int] | None) -> None:
        directory.chmod(0o700)
        if user is not None:
            os.chown(directory, *user)

    def __enter__(self) -> Self:
        with self._stack:
            self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self._stack.callback(self._end)
            self._open_doors()
            self._configure()
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()

    # -- the ways to it

    def environment(self, way: str) -> dict[str, str]:
        """Return what a process needs: `way` is "pooled" or "direct"."""
        options: dict[str, Any] = dict(LIMITS)
        if way == "pooled":
            host, port = GATE, str(self._gate_ports["pgbouncer"])
        else:
            host = ",".join(each.address for each in self.hosts)
            port = ",".join(str(each.doors["clients"].port) for each in self.hosts)
            options["target_session_attrs"] = "read-write"
        database: dict[str, Any] = {
            "NAME": DATABASE,
            "USER": "postgres",
            "HOST": host,
            "PORT": port,
            "OPTIONS": options,
        }
        if way == "pooled":
            database["DISABLE_SERVER_SIDE_CURSORS"] = True
        sentinels = [(each.address, each.ports["sentinel"]) for each in self.hosts]
        # no SOCKET_TIMEOUT: RQ sets one that is longer than its waits for a job
        waits = {"socket_connect_timeout": 2, "socket_timeout": 2}
        queue = {"SENTINELS": sentinels, "MASTER_NAME": MASTER, "PASSWORD": self._password, "DB": 0}
        queue |= {"SENTINEL_KWARGS": waits, "CONNECTION_KWARGS": {"socket_connect_timeout": 2}}
        return {
            "DATABASE_URL": f"postgresql://postgres@{GATE}:{port.partition(',')[0]}/{DATABASE}",
            "HOSTS_DATABASE": json.dumps(database),
            "HOSTS_QUEUE": json.dumps(queue),
        }

    # -- what it says of itself

    def members(self) -> dict[str, dict[str, Any]]:
        """Return what Patroni says of each host, by its name."""
        for host in self.hosts:
            with suppress(Exception):
                answer = http.get(f"http://{host.address}:{host.ports['rest']}/cluster", timeout=2.0)
                return {each["name"]: each for each in answer.json()["members"]}
        return {}

    def leader(self, *, beside: Host | None = None) -> Host:
        """Return the host of the primary, as soon as one answers to writes that is not `beside`."""

        def writes(host: Host) -> bool:
            if host is beside:
                return False
            answer = http.get(f"http://{host.address}:{host.ports['rest']}/primary", timeout=2.0)
            return answer.status_code == 200 and host.name in self._leading()

        def ask() -> Host | None:
            for host in self.hosts:
                with suppress(Exception):
                    if writes(host):
                        return host
            return None

        answer = until(ask, "a primary")
        assert answer is not None
        return answer

    def _leading(self) -> set[str]:
        members = self.members().values()
        return {each["name"] for each in members if each["role"] in ("leader", "master", "primary")}

    def standbys(self) -> list[Host]:
        leader = self.leader()
        return [each for each in self.hosts if each is not leader]

    def heal(self) -> None:
        """Start and connect all there is, and return when both standbys follow the primary."""
        for host in self.hosts:
            host.come_back()
            host.start()
        for server in self.gate.values():
            server.start()
        until(self._is_whole, "three members that follow one primary", 180.0)
        until(self._has_redis, "a Redis that the Sentinels know, with a replica")

    def _is_whole(self) -> bool:
        members = self.members().values()
        is_following = [each["state"] in ("running", "streaming") and each.get("lag", 0) == 0 for each in members]
        if len(is_following) != len(self.hosts) or not all(is_following) or len(self._leading()) != 1:
            return False
        if len({each.get("timeline") for each in members}) != 1:
            return False
        if any(each["role"] == "sync_standby" for each in members) != self.is_synchronous:
            return False
        with psycopg.connect(self.leader().dsn, autocommit=True) as session:
            found = session.execute(
                "SELECT count(*), count(*) FILTER (WHERE sync_state = 'sync') FROM pg_stat_replication "
                "WHERE state = 'streaming' AND application_name IN ('one', 'two', 'three')"
            ).fetchone()
        return found == (len(self.hosts) - 1, int(self.is_synchronous))

    def _has_redis(self) -> bool:
        host = self.hosts[2]
        with redis.Redis(host.address, host.ports["sentinel"], decode_responses=True) as sentinel:
            found: Any = sentinel.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER)
        with redis.Redis(found[0], int(found[1]), password=self._password, socket_timeout=2) as master:
            return bool(master.info("replication")["connected_slaves"] == 1)

    # -- what is done to it

    is_synchronous = True

    def set_synchronous(self, *, is_on: bool) -> None:
        """Let commits wait for a standby, or not."""
        self.is_synchronous = is_on
        host = self.leader()
        change = {"synchronous_mode": is_on}
        http.request("PATCH", f"http://{host.address}:{host.ports['rest']}/config", json=change).raise_for_status()
        until(self._is_whole, f"synchronous replication {'on' if is_on else 'off'}")

    def switch_over(self) -> None:
        """Let Patroni make another host the primary, in order."""
        host = self.leader()
        order = {"leader": host.name}
        http.request("POST", f"http://{host.address}:{host.ports['rest']}/switchover", json=order).raise_for_status()

    def cut_off_standbys(self, primary: Host) -> None:
        """Let both standbys have what there is, and nothing of what the primary writes from here on."""
        with psycopg.connect(primary.dsn, autocommit=True) as session:
            [written] = session.execute("SELECT pg_current_wal_lsn()").fetchone() or [None]

            def have_it() -> bool:
                query = "SELECT count(*) = 2 FROM pg_stat_replication WHERE replay_lsn >= %s"
                return session.execute(query, [written]).fetchone() == (True,)

            until(have_it, "standbys that have caught up")
        primary.doors["replication"].vanish()

    def give_up_leadership(self) -> None:
        """Delete the primary's claim to lead, so that no standby waits until it has run out."""
        self._forget("/service/durable/leader")

    def back_up(self) -> Path:
        """Copy the primary's data, as `pg_basebackup` does; return where the backup is."""
        backup = self.directory / "backup"
        self._run(
            str(self.programs / "pg_basebackup"),
            "-D",
            str(backup),
            "-d",
            self.leader().dsn,
            "-X",
            "stream",
            "-c",
            "fast",
        )
        return backup

    def restore(self, backup: Path) -> None:
        """Lose all three databases, and begin again with the backup."""
        for host in self.hosts:
            host.servers["patroni"].kill()
            shutil.rmtree(host.data)
        self._forget("/service/?recursive=true")
        backup.rename(self.hosts[0].data)
        self.hosts[0].servers["patroni"].start()
        self.leader()

    def _forget(self, key: str) -> None:
        """Delete a key from etcd, by a host whose etcd answers."""

        def ask() -> bool:
            for host in self.hosts:
                with suppress(httpx.TransportError):
                    http.request(
                        "DELETE", f"http://{host.address}:{host.ports['etcd']}/v2/keys{key}"
                    ).raise_for_status()
                    return True
            return False

        until(ask, f"etcd without {key}")

    def _run(self, *command: str) -> None:
        uid, gid = unprivileged_user() or (None, None)
        subprocess.run(
            command,
            check=True,
            cwd="/",
            user=uid,
            group=gid,
            extra_groups=None if uid is None else [],
            stdout=subprocess.DEVNULL,
        )

    def stop_redis(self) -> None:
        """Kill both, at once."""
        for host in self.hosts:
            if "redis" in host.servers:
                host.servers["redis"].kill()

    def start_redis(self) -> None:
        for host in self.hosts:
            if "redis" in host.servers:
                host.servers["redis"].start()

    def keep_logs(self, directory: Path) -> None:
        """Copy what the servers have said."""
        for log in self.directory.glob("**/*.log"):
            kept = directory / log.relative_to(self.directory)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(log, kept)

    # -- how it is built

    def _open_doors(self) -> None:
        for host in self.hosts:
            host.open_door("clients", (host.address, host.ports["postgres"]))
            host.open_door("replication", (host.address, host.ports["postgres"]))
            host.open_door("rest", (host.address, host.ports["rest"]))
            for other in self.hosts:
                host.open_door(f"etcd {other.name}", (other.address, other.ports["etcd"]))
            for door in host.doors.values():
                self._stack.enter_context(door)

    def _configure(self) -> None:
        members = ",".join(f"{each.name}=http://{each.address}:{each.ports['peers']}" for each in self.hosts)
        for host in self.hosts:
            host.servers["etcd"] = Server(_etcd(host, members), host.directory / "etcd.log")
            config = self._written(host.directory / "patroni.yml", json.dumps(self._patroni(host)))
            host.servers["patroni"] = Server(
                ["patroni", str(config)], host.directory / "patroni.log", pid_file=host.data / "postmaster.pid"
            )
            if host is not self.hosts[2]:
                config = self._written(host.directory / "redis.conf", self._redis(host))
                host.servers["redis"] = Server(["redis-server", str(config)], host.directory / "redis.log")
            config = self._written(host.directory / "sentinel.conf", self._sentinel(host))
            host.servers["sentinel"] = Server(["redis-sentinel", str(config)], host.directory / "sentinel.log")
        config = self._written(self.directory / "haproxy.cfg", self._haproxy())
        self.gate["haproxy"] = Server(["haproxy", "-db", "-f", str(config)], self.directory / "haproxy.log")
        config = self._written(self.directory / "pgbouncer.ini", self._pgbouncer())
        self.gate["pgbouncer"] = Server(["pgbouncer", str(config)], self.directory / "pgbouncer.log")

    def _written(self, path: Path, text: str) -> Path:
        path.write_text(text)
        self._own_file(path)
        return path

    @staticmethod
    def _own_file(path: Path) -> None:
        path.chmod(0o600)
        if (user := unprivileged_user()) is not None:
            os.chown(path, *user)

    def _start(self) -> None:
        for host in self.hosts:
            host.servers["etcd"].start()
        first = self.hosts[0]
        until(
            lambda: http.get(f"http://{first.address}:{first.ports['etcd']}/health").json()["health"] == "true", "etcd"
        )
        first.servers["patroni"].start()
        with psycopg.connect(self.leader().dsn, autocommit=True) as session:
            session.execute(f"CREATE DATABASE {DATABASE}")
        self.heal()

    def _end(self) -> None:
        for server in [*self.gate.values(), *(each for host in self.hosts for each in host.servers.values())]:
            server.kill()

    # -- the configurations

    def _patroni(self, host: Host) -> dict[str, Any]:
        return {
            "scope": "durable",
            "name": host.name,
            "restapi": {"listen": f"{host.address}:{host.ports['rest']}", "connect_address": host.place("rest")},
            # its own ways to etcd: it must not find others by itself. By the API of etcd 2: with that of etcd 3,
            # Patroni 3.0.2 lets a primary that was stopped and wakes up overwrite the claim of the new one
            "etcd": {"hosts": [host.place(f"etcd {each.name}") for each in self.hosts], "use_proxies": True},
            "bootstrap": {
                "dcs": {
                    **TIMING,
                    "maximum_lag_on_failover": 1 << 30,  # one that lags may be promoted: that is tried
                    "synchronous_mode": True,
                    "postgresql": {
                        "use_pg_rewind": True,
                        "parameters": {"max_connections": 100, "fsync": "off", "wal_keep_size": "128MB"},
                    },
                },
                "initdb": [{"encoding": "UTF8"}, {"locale": "C.UTF-8"}, "no-sync"],
            },
            "postgresql": {
                "data_dir": str(host.data),
                "bin_dir": str(self.programs),
                "listen": f"{host.address}:{host.ports['postgres']}",
                "connect_address": host.place("replication"),
                "use_unix_socket": True,
                "basebackup": [{"checkpoint": "fast"}],
                "pgpass": str(host.directory / "pgpass"),
                "authentication": {
                    "superuser": {"username": "postgres", "password": self._password},
                    "replication": {"username": "replicator", "password": self._password},
                },
                "pg_hba": [
                    f"{kind} trust"
                    for kind in ("local all all", "host all all 127.0.0.0/8", "host replication all 127.0.0.0/8")
                ],
                "parameters": {"unix_socket_directories": str(host.directory)},
            },
        }

    def _redis(self, host: Host) -> str:
        first = self.hosts[0]
        lines = [
            f"bind {host.address}",
            f"port {host.ports['redis']}",
            f"dir {host.directory}",
            f"requirepass {self._password}",
            f"masterauth {self._password}",
            f"replica-announce-ip {host.address}",
            'save ""',
        ]
        if host is not first:
            lines.append(f"replicaof {first.address} {first.ports['redis']}")
        return "\n".join([*lines, ""])

    def _sentinel(self, host: Host) -> str:
        first = self.hosts[0]
        lines = [
            f"bind {host.address}",
            f"port {host.ports['sentinel']}",
            f"dir {host.directory}",
            f"sentinel monitor {MASTER} {first.address} {first.ports['redis']} 2",
            f"sentinel auth-pass {MASTER} {self._password}",
            f"sentinel down-after-milliseconds {MASTER} 2000",
            f"sentinel failover-timeout {MASTER} 6000",
            f"sentinel announce-ip {host.address}",
        ]
        return "\n".join([*lines, ""])

    def _haproxy(self) -> str:
        servers = [
            f"    server {each.name} {each.place('clients')} check addr {each.address} port {each.doors['rest'].port}"
            for each in self.hosts
        ]
        lines = [
            "defaults",
            "    mode tcp",
            "    timeout connect 2s",
            "    timeout client 30m",
            "    timeout server 30m",
            "    timeout check 2s",
            "listen primary",
            f"    bind {GATE}:{self._gate_ports['haproxy']}",
            "    option httpchk OPTIONS /primary",
            "    http-check expect status 200",
            "    default-server inter 1s fall 2 rise 1 on-marked-down shutdown-sessions",
            *servers,
        ]
        return "\n".join([*lines, ""])

    def _pgbouncer(self) -> str:
        lines = [
            "[databases]",
            f"{DATABASE} = host={GATE} port={self._gate_ports['haproxy']} user=postgres",
            "[pgbouncer]",
            f"listen_addr = {GATE}",
            f"listen_port = {self._gate_ports['pgbouncer']}",
            "unix_socket_dir =",
            "auth_type = any",
            "pool_mode = transaction",
            "max_client_conn = 200",
            "default_pool_size = 20",
            "server_connect_timeout = 3",
            "server_login_retry = 1",
            "tcp_user_timeout = 10000",
            "tcp_keepidle = 5",
            "tcp_keepintvl = 2",
            "tcp_keepcnt = 3",
        ]
        return "\n".join([*lines, ""])


def _etcd(host: Host, members: str) -> list[str]:
    clients, peers = (f"http://{host.address}:{host.ports[each]}" for each in ("etcd", "peers"))
    options = {
        "name": host.name,
        "data-dir": str(host.directory / "etcd"),
        "listen-client-urls": clients,
        "advertise-client-urls": clients,
        "listen-peer-urls": peers,
        "initial-advertise-peer-urls": peers,
        "initial-cluster": members,
        "heartbeat-interval": "200",
        "election-timeout": "2000",
        "log-level": "warn",
    }
    return ["etcd", *(f"--{name}={value}" for name, value in options.items()), "--unsafe-no-fsync", "--enable-v2"]
