"""Check what a release hands out: `check_release.py FOLDER`, where `uv build` has put an sdist and a wheel.

The sdist has the files of the repository, the wheel those of `durable/`, and both say the same. Then each is installed
into an environment of its own, by `python -m venv` and pip as a user does it, and the tutorial is followed there. A
type checker sees the types of the installed package.
"""

import ast
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = {"durable/__init__.py", "durable/py.typed", "durable/migrations/0001_tables.py"}
#: What mypy is to find in it: the types of durable's own names, and the mistake in the last line.
TYPED = """\
from durable import Context, workflow


def charge(order_id: int) -> str:
    return f"payment-{order_id}"


@workflow(name="release.fulfil")
def fulfil(ctx: Context, order_id: int) -> str:
    return ctx.step("charge", charge, order_id)


reveal_type(fulfil.start(1).result())
fulfil.start("one")
"""


def ran(*command: str | Path, cwd: Path, statuses: Sequence[int] = (0,), **more: str) -> str:
    """Return what the command prints. It knows nothing of the environment that calls it."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV", "DJANGO_"))
    }
    done = subprocess.run(
        [*map(str, command)],
        cwd=cwd,
        env={**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode not in statuses:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def files_of_the_repository() -> set[str]:
    listed = ran("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT).split("\0")
    return {name for name in listed if name and (ROOT / name).exists()}


def of_wheel(wheel: Path) -> tuple[set[str], Message]:
    """Return the wheel's files without its metadata, and its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        said = Parser().parsestr(archive.read(metadata).decode())
    return {name for name in names if ".dist-info/" not in name}, said


def of_sdist(sdist: Path) -> tuple[set[str], Message]:
    """Return the sdist's files without its metadata, and its metadata."""
    with tarfile.open(sdist) as archive:
        top = sdist.name.removesuffix(".tar.gz") + "/"
        names = {each.name.removeprefix(top) for each in archive.getmembers() if not each.isdir()}
        file = archive.extractfile(f"{top}PKG-INFO")
        assert file is not None
        said = Parser().parsestr(file.read().decode())
    return names - {"PKG-INFO"}, said


def compared(name: str, found: set[str], expected: set[str]) -> list[str]:
    missing, strange = sorted(expected - found), sorted(found - expected)
    return [f"{name} lacks {each}" for each in missing] + [f"{name} should not have {each}" for each in strange]


def problems(sdist: Path, wheel: Path) -> list[str]:
    """Return what is wrong with the files and the metadata."""
    tracked = files_of_the_repository()
    of_package = {name for name in tracked if name.startswith("durable/")}
    (files, said), (sources, said_in_sdist) = of_wheel(wheel), of_sdist(sdist)
    found = compared("the wheel", files, of_package | REQUIRED) + compared("the sdist", sources, tracked)
    if said.as_string() != said_in_sdist.as_string():
        found.append("the metadata of the wheel and of the sdist differ")
    links = re.findall(r"\]\(([^)#]+)", str(said.get_payload()))
    found += [f"the description has a link that leads nowhere: {each}" for each in links if "://" not in each]
    own = ast.literal_eval(
        re.findall(r"^__version__ = (.+)$", (ROOT / "durable/__init__.py").read_text(), re.MULTILINE)[0]
    )
    if said["Version"] != own:
        found.append(f"the metadata say {said['Version']}, durable.__version__ is {own}")
    return found


def tried(archive: Path, scratch: Path) -> list[str]:
    """Install the sdist or the wheel as a user does, follow the tutorial, and return what is wrong."""
    kind = "wheel" if archive.suffix == ".whl" else "sdist"
    folder = scratch / kind
    folder.mkdir()
    ran(
        Path(sys.base_prefix) / "bin" / f"python{sys.version_info[0]}.{sys.version_info[1]}",
        "-m",
        "venv",
        folder / "venv",
        cwd=folder,
    )
    python = folder / "venv" / "bin" / "python"
    ran(python, "-m", "pip", "install", "--quiet", f"{archive}[cli]", cwd=folder)
    where = ran(python, "-c", "import durable; print(durable.__file__)", cwd=folder).strip()
    if not where.startswith(str(folder)):
        return [f"the {kind}'s durable is {where}"]
    found = typed(kind, python, folder)
    tutorial = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "tests/docs/test_tutorial.py",
    ]
    ran(*tutorial, cwd=ROOT, TUTORIAL_PROGRAMS=str(python.parent))
    return found


def typed(kind: str, python: Path, folder: Path) -> list[str]:
    """Return what is wrong with the types that mypy finds in the installed package."""
    (folder / "typed.py").write_text(TYPED)
    options = ["--strict", "--config-file=", f"--cache-dir={folder / 'mypy'}", "--python-executable", str(python)]
    said = ran(sys.executable, "-m", "mypy", *options, "typed.py", cwd=folder, statuses=(0, 1))
    lines = [re.sub(r" {2,}.*", "", each) for each in said.splitlines()]
    number = TYPED.count("\n")
    if [each for each in lines if "reveal_type" in each or f":{number - 1}:" in each] != [
        f'typed.py:{number - 1}: note: Revealed type is "str"'
    ]:
        return [f"mypy does not see the types of the {kind}:\n{said}"]
    if [each for each in lines if "error:" in each and not each.startswith(f"typed.py:{number}:")]:
        return [f"mypy does not accept the {kind}:\n{said}"]
    return [] if f"typed.py:{number}: error:" in said else [f"mypy finds no mistake with the {kind}:\n{said}"]


def main(arguments: Sequence[str]) -> int:
    (sdist,), (wheel,) = Path(arguments[0]).glob("*.tar.gz"), Path(arguments[0]).glob("*.whl")
    found = problems(sdist, wheel)
    if not found:
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(2) as both:
            for each in both.map(lambda archive: tried(archive.resolve(), Path(scratch)), (sdist, wheel)):
                found += each
    print("\n".join(found or [f"{sdist.name} and {wheel.name}: complete, installed, and the tutorial followed"]))  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
