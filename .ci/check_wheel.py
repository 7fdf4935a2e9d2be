"""Compare a built wheel with the tree: every file of the app is in it, and nothing of the project around it is.

Owns no list of files that someone would have to keep up: what is in `durable/` belongs into the wheel.
"""

import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = ("durable/__init__.py", "durable/py.typed", "durable/migrations/0001_tables.py")


def problems(wheel: Path) -> list[str]:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "durable").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    found = [f"missing: {name}" for name in sorted({*expected, *REQUIRED} - names)]
    strangers = {name for name in names if not name.startswith("durable/") and ".dist-info/" not in name}
    return found + [f"does not belong there: {name}" for name in sorted(strangers)]


def main() -> int:
    wheel = Path(sys.argv[1])
    found = problems(wheel)
    print("\n".join([f"{wheel.name}: {'not as it should be' if found else 'complete'}", *found]))  # noqa: T201
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
