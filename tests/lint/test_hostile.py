"""Whatever is in a file, the linter answers with findings that say what to do: it runs nothing and never fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from durable.lint import UNREADABLE, Finding, lint
from durable.lint.engine import as_sarif

WORKFLOW = """
import time
from durable import Context, workflow

@workflow(name="hostile.clock")
def clock(ctx: Context):
    time.time()
"""


def the_one(findings: list[Finding]) -> Finding:
    [finding] = findings
    return finding


def unreadable(path: Path) -> Finding:
    finding = the_one(lint([path]))
    assert (finding.id, finding.level, finding.path) == (UNREADABLE, "error", str(path))
    assert finding.fix.endswith((".", "latin-1 -*-"))
    return finding


def test_nothing_in_a_file_is_run(tmp_path: Path) -> None:
    trap = tmp_path / "trap.py"
    trap.write_text(f"open({str(tmp_path / 'sprung')!r}, 'w')\nraise SystemExit(3)\n{WORKFLOW}")
    assert the_one(lint([trap])).id == "W101"
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"def f(:\n", "not valid Python"),
        (b"x = 1\n\0\n", "null bytes"),
        (b"# -*- coding: utf-8 -*-\nx = '\xff'\n", "encoding"),
        (b"# -*- coding: klingon -*-\n", "encoding"),
        (b"x = " + b"(" * 5_000 + b")" * 5_000, "not valid Python"),
        (b"x = " + b"-" * 200_000 + b"1", "nested too deeply"),
        (b"  x = 1\n y = 2\n", "not valid Python"),
        (b"\xff\xfex\x00=\x001\x00", "null bytes"),
    ],
)
def test_a_file_that_is_no_python(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "broken.py"
    path.write_bytes(content)
    assert says in unreadable(path).message


@pytest.mark.parametrize("encoding", ["latin-1", "utf-8-sig", "cp1252", "utf-8"])
def test_a_file_is_read_in_the_encoding_it_declares(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "café.py"
    declared = "" if encoding == "utf-8-sig" else f"# -*- coding: {encoding} -*-\n"
    path.write_bytes((declared + "NAME = 'é'\n" + WORKFLOW).encode(encoding))
    assert the_one(lint([path])).id == "W101"


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"work\xff\x1bflows.py")
    path.write_text(WORKFLOW)
    finding = the_one(lint([tmp_path]))
    assert finding.path == str(path)
    assert json.dumps(as_sarif([finding])).isascii()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_directory_that_may_not_be_read(tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir(mode=0)
    assert "directory cannot be read" in the_one(lint([tmp_path])).message


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.py"
    path.touch(mode=0)
    assert "Permission denied" in unreadable(path).message


def test_what_is_no_file(tmp_path: Path) -> None:
    fifo = tmp_path / "pipe.py"
    os.mkfifo(fifo)
    assert "not a file" in unreadable(fifo).message
    dangling = tmp_path / "dangling.py"
    dangling.symlink_to(tmp_path / "gone.py")
    unreadable(dangling)


def test_links_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "workflows.py").write_text(WORKFLOW)
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "again").symlink_to(tmp_path)
    (tmp_path / "twice.py").symlink_to(tmp_path / "workflows.py")
    (tmp_path / "itself.py").symlink_to(tmp_path / "itself.py")
    assert sorted(each.id for each in lint([tmp_path, tmp_path / "inside"])) == [UNREADABLE, "W101"]


def test_imports_in_a_circle_end(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        f"from b import *\nfrom b import unknown, other\nimport b as c\n{WORKFLOW}    other()\n    c.x.y()\n"
    )
    (tmp_path / "b.py").write_text(
        "from a import *\nfrom a import unknown, other\nother = unknown\nunknown = other\nx = x\n"
    )
    assert the_one(lint([tmp_path])).id == "W101"


@pytest.mark.slow
def test_code_that_calls_itself_ends(tmp_path: Path) -> None:
    calls = "\n".join(f"    helper_{n}(ctx)" for n in range(60))
    helpers = "\n".join(f"def helper_{n}(ctx):\n{calls}\n" for n in range(60))
    bodies = "".join(
        f"def body_{n}(c):\n" + f"    c.loop('x', body_{n + 1})\n    c.loop('y', body_{n + 1})\n" for n in range(40)
    )
    (tmp_path / "a.py").write_text(f"{helpers}{bodies}{WORKFLOW}{calls}\n    ctx.loop('l', body_0)\n")
    assert "W101" in [each.id for each in lint([tmp_path])]


@pytest.mark.parametrize(
    "code",
    [
        "    x = " + "+".join(["ctx.run_id"] * 3_000),
        "    "
        + "".join(f"if ctx.run_id == '{n}':\n        pass\n    el" for n in range(900))
        + "if True:\n        pass",
        "    x" + ".a" * 3_000 + " = 1",
        "    x = " + "[" * 80 + "]" * 80,
        "".join("    " * n + "if x:\n" for n in range(1, 95)) + "    " * 95 + "pass",
        "    x = f'" + "{ctx.run_id}" * 2_000 + "'",
    ],
)
def test_code_that_is_nested_deeply(tmp_path: Path, code: str) -> None:
    path = tmp_path / "deep.py"
    path.write_text(f"{WORKFLOW}{code}\n")
    assert {each.id for each in lint([path])} <= {UNREADABLE, "W101"}


@pytest.mark.slow
def test_a_file_of_ten_thousand_lines(tmp_path: Path) -> None:
    steps = "\n".join(f"    ctx.step('step {n}', print, {n})" for n in range(10_000))
    path = tmp_path / "long.py"
    path.write_text(f"{WORKFLOW}{steps}\n    ctx.step('step 7', print)\n")
    assert sorted(each.id for each in lint([path])) == ["W101", "W132"]


@pytest.mark.slow
def test_a_thousand_files(tmp_path: Path) -> None:
    for number in range(1_000):
        package = tmp_path / f"app{number // 50}"
        package.mkdir(exist_ok=True)
        (package / f"workflows_{number}.py").write_text(WORKFLOW * 3)
    assert len(lint([tmp_path])) == 3_000


def test_directories_of_others_are_passed_by(tmp_path: Path) -> None:
    for name in (".git", "node_modules", "lib/site-packages", "__pycache__", "env"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "workflows.py").write_text(WORKFLOW)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    assert lint([tmp_path]) == []


def test_a_finding_in_a_file_that_was_not_given_can_be_silenced_there(tmp_path: Path) -> None:
    (tmp_path / "steps.py").write_text(
        "import time\n\ndef late():\n    time.time()  # durable: allow[W101] for the log\n    time.time()\n"
    )
    given = tmp_path / "workflows.py"
    given.write_text(
        "from durable import workflow\nfrom steps import late\n\n@workflow(name='a')\ndef a(ctx):\n    late()\n"
    )
    finding = the_one(lint([given]))
    assert (finding.path, finding.line, finding.workflow) == (str(tmp_path / "steps.py"), 5, "a")
