"""The comment on a pull request: one, in place, by what GitHub and GitLab ask. A fake of their APIs keeps the comments.

The action and the template are run as they are, by the shell that runs them there.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from durable.replay_check.markdown import MARKER

pytestmark = pytest.mark.slow

ROOT: Final = Path(__file__).resolve().parents[2]
TOKEN: Final = "secret-token"
TEXT: Final = f"{MARKER}\n\n3 open runs: all go on with this change.\n"


class Api:
    """The comments of one request, at the addresses and with the headers of either service."""

    def __init__(self) -> None:
        self.comments: list[dict[str, Any]] = []
        self.asked: list[str] = []
        self.status = 0  # of each answer, if it is not 0
        api = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                data = json.loads(self.rfile.read(size)) if size else None
                api.asked.append(f"{self.command} {urlsplit(self.path).path}")
                token = self.headers.get("Authorization") or self.headers.get("PRIVATE-TOKEN")
                allowed = token in (f"Bearer {TOKEN}", TOKEN)
                status, body = (api.status or 401, {}) if api.status or not allowed else api.answer(self, data)
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            do_GET = do_POST = do_PATCH = do_PUT = _answer

            def log_message(self, format: str, *args: Any) -> None:
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, asked: BaseHTTPRequestHandler, data: Any) -> tuple[int, Any]:
        url = urlsplit(asked.path)
        if asked.command == "GET":
            query = {name: int(values[0]) for name, values in parse_qs(url.query).items()}
            first = query["per_page"] * (query["page"] - 1)
            return 200, self.comments[first : first + query["per_page"]]
        if asked.command == "POST":
            self.comments.append({"id": 1000 + len(self.comments), **data})
            return 201, self.comments[-1]
        (found,) = (each for each in self.comments if url.path.endswith(f"/{each['id']}"))
        found.update(data)
        return 200, found


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture(params=["github", "gitlab"])
def variables(request: pytest.FixtureRequest, api: Api, tmp_path: Path) -> dict[str, str]:
    """What the service sets for a job of a pull request."""
    kept = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    if request.param == "gitlab":
        return kept | {
            "CI_API_V4_URL": f"{api.address}/api/v4",
            "CI_PROJECT_ID": "7",
            "CI_MERGE_REQUEST_IID": "12",
            "GITLAB_TOKEN": TOKEN,
        }
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 12}}))
    return kept | {
        "GITHUB_API_URL": api.address,
        "GITHUB_REPOSITORY": "acme/shop",
        "GITHUB_EVENT_PATH": str(event),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        "GITHUB_TOKEN": TOKEN,
    }


def ended(command: list[str], directory: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def put(text: str, variables: dict[str, str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "comment.md"
    file.write_text(text)
    return ended([sys.executable, "-m", "durable.contrib.pull_request", str(file)], ROOT, variables)


def test_the_second_check_writes_the_comment_anew_in_place(api: Api, variables: dict[str, str], tmp_path: Path) -> None:
    api.comments = [{"id": number, "body": f"a remark, {number}"} for number in range(1, 151)]  # on two pages
    first = put(TEXT, variables, tmp_path)
    assert (first.returncode, first.stderr) == (0, "")
    again = put(TEXT.replace("3", "4"), variables, tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    assert [each["body"] for each in api.comments[150:]] == [TEXT.replace("3", "4")]
    assert [each["body"] for each in api.comments[:150]] == [f"a remark, {number}" for number in range(1, 151)]
    if "GITHUB_TOKEN" in variables:
        assert api.asked[0] == "GET /repos/acme/shop/issues/12/comments"
        assert api.asked[-1] == "PATCH /repos/acme/shop/issues/comments/1150"
        assert TEXT in Path(variables["GITHUB_STEP_SUMMARY"]).read_text()
    else:
        assert api.asked[0] == "GET /api/v4/projects/7/merge_requests/12/notes"
        assert api.asked[-1] == "PUT /api/v4/projects/7/merge_requests/12/notes/1150"


@pytest.mark.parametrize(("status", "ends"), [(403, 0), (500, 1)], ids=["a token that may not write", "a failure"])
def test_an_api_that_refuses_is_told(
    api: Api, variables: dict[str, str], tmp_path: Path, status: int, ends: int
) -> None:
    api.status = status
    done = put(TEXT, variables, tmp_path)
    assert (done.returncode, done.stdout) == (ends, TEXT)
    assert str(status) in done.stderr
    assert TOKEN not in done.stdout + done.stderr


def test_an_api_that_is_away_is_told(api: Api, variables: dict[str, str], tmp_path: Path) -> None:
    away = {name: value.replace(api.address, "http://127.0.0.1:1") for name, value in variables.items()}
    done = put(TEXT, away, tmp_path)
    assert (done.returncode, done.stdout) == (1, TEXT)
    assert "was not written" in done.stderr


def test_outside_of_a_pull_request_the_text_is_printed(tmp_path: Path) -> None:
    done = put(TEXT, {"PATH": os.environ["PATH"]}, tmp_path)
    assert (done.returncode, done.stdout) == (0, TEXT)
    assert "no pull request" in done.stderr


def test_what_is_no_report_is_not_commented(api: Api, variables: dict[str, str], tmp_path: Path) -> None:
    done = put("Traceback", variables, tmp_path)
    assert done.returncode == 1
    assert api.asked == []


#: Stands for a project's manage.py: prints a report, and ends as the check does.
MANAGE: Final = f"""\
import sys
assert sys.argv[1:] == ["durable", "replay-check", "--diff", "-o", "markdown", "--from", "a.jsonl", "b.jsonl"], sys.argv
print({TEXT!r}, end="")
sys.exit(int(open("status").read()))
"""


@pytest.mark.parametrize(
    ("status", "fails", "ends"), [(0, "true", 0), (1, "true", 1), (1, "false", 0), (2, "false", 2)]
)
@pytest.mark.parametrize("variables", ["github"], indirect=True)
def test_the_action(api: Api, variables: dict[str, str], tmp_path: Path, status: int, fails: str, ends: int) -> None:
    action = yaml.safe_load((ROOT / ".github/actions/replay-check/action.yml").read_text())
    (step,) = action["runs"]["steps"]
    given = {"from": "a.jsonl b.jsonl", "fails": fails, "token": TOKEN}
    inputs = {name: given.get(name, about.get("default")) for name, about in action["inputs"].items()}
    env = {name: inputs[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in step["env"].items()}
    (tmp_path / "manage.py").write_text(MANAGE)
    (tmp_path / "status").write_text(str(status))
    command = [step["shell"], "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
    own = {"RUNNER_TEMP": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = ended(command, tmp_path, variables | env | own)
    assert done.returncode == ends, done.stderr
    assert [each["body"] for each in api.comments] == [TEXT]


@pytest.mark.parametrize("status", [0, 1, 2])
@pytest.mark.parametrize("variables", ["gitlab"], indirect=True)
def test_the_template(api: Api, variables: dict[str, str], tmp_path: Path, status: int) -> None:
    job = yaml.safe_load((ROOT / ".gitlab/replay-check.yml").read_text())[".durable-replay-check"]
    (tmp_path / "manage.py").write_text(MANAGE)
    (tmp_path / "status").write_text(str(status))
    env = {**job["variables"], "DURABLE_HISTORIES": "a.jsonl b.jsonl", "PYTHONPATH": str(ROOT)}
    done = ended(["bash", "-eo", "pipefail", "-c", "\n".join(job["script"])], tmp_path, variables | env)
    assert done.returncode == status, done.stderr
    assert [each["body"] for each in api.comments] == [TEXT]
