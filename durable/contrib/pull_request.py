"""`python -m durable.contrib.pull_request FILE`: comment on a pull request what `durable replay-check` has found.

FILE has the text of `durable replay-check -o markdown`. There is one comment, which each later check writes anew
in place. Runs in GitHub Actions and GitLab CI, and finds the request in the variables that these set:

- GitHub: `GITHUB_API_URL`, `GITHUB_REPOSITORY`, `GITHUB_EVENT_PATH`, and `GITHUB_TOKEN` with `pull-requests: write`.
- GitLab: `CI_API_V4_URL`, `CI_PROJECT_ID`, `CI_MERGE_REQUEST_IID`, and `GITLAB_TOKEN` with the scope `api`.

Where the comment may not be written (a fork's token reads alone), or there is no request, the text is printed, and the
exit status is 0: the check's own status decides. An error of the API that is none of these is status 1.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from durable.replay_check.markdown import MARKER

_PAGE: Final = 100  # comments of a page, the most that both services give
_TIMEOUT: Final = 30.0  # seconds


@dataclass(frozen=True, slots=True)
class Target:
    """Where the comments of a request are. An existing one is changed by `method` at `one` with its id."""

    comments: str
    one: str
    method: str
    headers: dict[str, str]


def target() -> Target | None:
    """Return where the comments of this request are; None outside of one, or without a token."""
    env = os.environ
    if (token := env.get("GITHUB_TOKEN")) and (number := _github_number()):
        root = f"{env['GITHUB_API_URL']}/repos/{env['GITHUB_REPOSITORY']}/issues"
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
        return Target(f"{root}/{number}/comments", f"{root}/comments", "PATCH", headers)
    if (token := env.get("GITLAB_TOKEN")) and (own_number := env.get("CI_MERGE_REQUEST_IID")):
        notes = f"{env['CI_API_V4_URL']}/projects/{env['CI_PROJECT_ID']}/merge_requests/{own_number}/notes"
        return Target(notes, notes, "PUT", {"PRIVATE-TOKEN": token})
    return None


def _github_number() -> int | None:
    path = os.environ.get("GITHUB_EVENT_PATH")
    event = json.loads(Path(path).read_text(encoding="utf-8")) if path else {}
    number: int | None = event.get("pull_request", {}).get("number")
    return number


def put(text: str, where: Target) -> None:
    """Write the comment, in place of the one of an earlier check. Raises HTTPError, URLError."""
    for each in _comments(where):
        if str(each.get("body", "")).startswith(MARKER):
            _ask(where, where.method, f"{where.one}/{each['id']}", {"body": text})
            return
    _ask(where, "POST", where.comments, {"body": text})


def _comments(where: Target) -> Iterator[dict[str, Any]]:
    page = 1
    while found := _ask(where, "GET", f"{where.comments}?per_page={_PAGE}&page={page}"):
        yield from found
        if len(found) < _PAGE:
            return
        page += 1


def _ask(where: Target, method: str, address: str, data: object = None) -> Any:
    body = None if data is None else json.dumps(data).encode()
    headers = {**where.headers, "Content-Type": "application/json"}
    request = Request(address, data=body, method=method, headers=headers)  # noqa: S310  # the service's own address
    with urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
        return json.load(answer)


def main(arguments: Sequence[str] | None = None) -> int:
    """Put the text of the file on the pull request, and return the exit status."""
    parser = ArgumentParser(prog="python -m durable.contrib.pull_request", description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE", help="what `durable replay-check -o markdown` has printed")
    text = parser.parse_args(arguments).file.read_text(encoding="utf-8")
    if not text.startswith(MARKER):
        sys.stderr.write("The file is not of `durable replay-check -o markdown`: the check has failed before it.\n")
        return 1
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    where = target()
    if where is None:
        sys.stdout.write(text)
        sys.stderr.write("There is no pull request here, or no token: nothing was commented.\n")
        return 0
    try:
        put(text, where)
    except HTTPError as error:
        sys.stdout.write(text)
        sys.stderr.write(f"The comment was not written: {error.code} {error.reason} of {error.url}\n")
        return 0 if error.code in (401, 403, 404) else 1
    except URLError as error:
        sys.stdout.write(text)
        sys.stderr.write(f"The comment was not written: {error.reason}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
