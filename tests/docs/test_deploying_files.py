"""The files that docs/guides/deploying.md includes.

They are read as the programs read them for whom they are, and their commands run.
"""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.development.project import Project
from tests.docs.pages import SITE
from tests.support.processes import Program
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

FILES: Final = SITE / "deploy"
ASGI: Final = """
from django.core.asgi import get_asgi_application

application = get_asgi_application()
"""


def procfile() -> dict[str, str]:
    lines = (FILES / "Procfile").read_text().splitlines()
    return {name: command.strip() for name, _, command in (line.partition(":") for line in lines)}


def compose() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FILES / "compose.yaml").read_text())
    return found


def containers() -> dict[str, dict[str, Any]]:
    """The containers of the manifests, by name."""
    found = {}
    for each in yaml.safe_load_all((FILES / "kubernetes.yaml").read_text()):
        for container in each["spec"]["template"]["spec"]["containers"]:
            found[container["name"]] = container
    return found


def unit() -> configparser.RawConfigParser:
    found = configparser.RawConfigParser(strict=False)
    found.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their case
    found.read(FILES / "shop-workers.service")
    return found


def test_every_file_is_on_the_page() -> None:
    page = (SITE / "guides" / "deploying.md").read_text()
    assert [each.name for each in FILES.iterdir() if f"../deploy/{each.name}" not in page] == []


WORKERS: Final = {
    "Procfile": shlex.split(procfile()["worker"]),
    "compose": compose()["services"]["worker"]["command"],
    "systemd": shlex.split(unit()["Service"]["ExecStart"]),
    "Kubernetes": containers()["worker"]["args"],
}
SERVERS: Final = {
    "Procfile": shlex.split(procfile()["web"]),
    "compose": compose()["services"]["web"]["command"],
    "Kubernetes": containers()["web"]["args"],
    "Dockerfile": re.findall(r'"([^"]+)"', (FILES / "Dockerfile").read_text().rpartition("CMD")[2]),
}
MIGRATIONS: Final = {
    "Procfile": shlex.split(procfile()["release"]),
    "compose": compose()["services"]["migrate"]["command"],
    "Kubernetes": containers()["migrate"]["args"],
}


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number: int = server.getsockname()[1]
        return number


class Deployed:
    """The project in a directory, on this test's servers; commands run there until the test ends."""

    def __init__(self, directory: Path, environment: dict[str, str], port: int) -> None:
        self.site = Project(directory)
        self.site.write("mysite/asgi.py", ASGI)
        self.port = port
        path = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
        own = {"DJANGO_SETTINGS_MODULE": "mysite.settings", "WITH_REDIS": "1", "PYTHONUNBUFFERED": "1", "PATH": path}
        self.environment = {**environment, **own, "PORT": str(port)}
        self.started: list[Program] = []

    def command(self, words: Sequence[str]) -> list[str]:
        """A command as a file says it, but for ports that are free here and this interpreter."""
        line = [re.sub(r"^(.*=)?(8000|8081|\$PORT)$", rf"\g<1>{self.port}", each) for each in words]
        line = [each.replace(":8081/", f":{self.port}/").replace("0.0.0.0", "127.0.0.1") for each in line]
        program = "python" if Path(line[0]).name == "python" else line[0]
        found = shutil.which(program, path=self.environment["PATH"])
        assert found is not None
        return [found, *line[1:]]

    def start(self, words: Sequence[str]) -> Program:
        program = Program.__new__(Program)
        program.begin(self.command(words), environment=self.environment, directory=self.site.directory)
        self.started.append(program)
        return program

    def run(self, words: Sequence[str]) -> int:
        """The exit status of a command that ends by itself."""
        done = subprocess.run(
            self.command(words), cwd=self.site.directory, env=self.environment, timeout=120, check=False
        )
        return done.returncode


@pytest.fixture
def deployed(tmp_path: Path, child_environment: dict[str, str], port: int) -> Iterator[Deployed]:
    found = Deployed(tmp_path, child_environment, port)
    yield found
    for each in found.started:
        if each.process.poll() is None:
            each.end()
        each.close()


def answers(url: str, status: int = 200) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return bool(answer.status == status)
    except urllib.error.HTTPError as error:
        return error.code == status
    except OSError:  # nobody listens yet
        return False


@pytest.mark.redis
@pytest.mark.django_db(transaction=True)
class TestCommands:
    @pytest.mark.parametrize("where", WORKERS)
    def test_workers_start_and_end(self, deployed: Deployed, where: str) -> None:
        program = deployed.start(WORKERS[where])
        program.wait_for("worker ready", 2)
        assert program.end() == 0
        assert program.wait_for("stopped")

    @pytest.mark.parametrize("where", SERVERS)
    def test_web_servers_serve(self, deployed: Deployed, where: str) -> None:
        program = deployed.start(SERVERS[where])
        eventually(lambda: answers(f"http://127.0.0.1:{deployed.port}/place/{where}"))
        program.end()

    @pytest.mark.parametrize("where", MIGRATIONS)
    def test_migrations_are_applied(self, deployed: Deployed, where: str) -> None:
        assert deployed.run(MIGRATIONS[where]) == 0

    def test_composes_health_check_tells_a_worker_that_is_there(self, deployed: Deployed) -> None:
        kind, *check = compose()["services"]["worker"]["healthcheck"]["test"]
        assert kind == "CMD"
        assert deployed.run(check) != 0
        program = deployed.start(WORKERS["compose"])
        eventually(lambda: deployed.run(check) == 0)
        program.end()
        assert deployed.run(check) != 0

    def test_the_probes_of_the_manifests_are_answered(self, deployed: Deployed) -> None:
        worker = containers()["worker"]
        deployed.start(worker["args"])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            path = worker[probe]["httpGet"]["path"]
            eventually(lambda path=path: answers(f"http://127.0.0.1:{deployed.port}{path}"))  # type: ignore[misc]


class TestFiles:
    def test_the_probes_ask_where_the_worker_answers(self) -> None:
        worker = containers()["worker"]
        ports = {each["name"]: each["containerPort"] for each in worker["ports"]}
        asked = {worker[probe]["httpGet"]["port"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert [f"--health-port={ports[name]}" in worker["args"] for name in asked] == [True]
        assert "--health-address=0.0.0.0" in worker["args"]  # the kubelet asks from outside

    def test_selectors_find_their_pods(self) -> None:
        deployments = [
            each for each in yaml.safe_load_all((FILES / "kubernetes.yaml").read_text()) if each["kind"] == "Deployment"
        ]
        assert len(deployments) == 2
        for each in deployments:
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"].items() <= labels.items()

    def test_services_wait_for_services_that_there_are(self) -> None:
        services = compose()["services"]
        for service in services.values():
            assert set(service.get("depends_on", {})) <= set(services)

    def test_the_unit_is_one_of_systemds(self, tmp_path: Path) -> None:
        found = unit()
        assert found["Service"]["KillMode"] == "mixed"
        verifier = shutil.which("systemd-analyze")
        if verifier is None:
            return
        text = (FILES / "shop-workers.service").read_text()
        copy = tmp_path / "shop-workers.service"
        copy.write_text(text.replace("/srv/shop/.venv/bin/python", sys.executable))
        done = subprocess.run(
            [verifier, "verify", "--man=no", str(copy)], capture_output=True, text=True, timeout=120, check=False
        )
        about_it = [line for line in (done.stdout + done.stderr).splitlines() if "shop-workers" in line]
        assert about_it == []
