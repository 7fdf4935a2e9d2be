"""Where the oldest PostgreSQL that is supported is installed, and copies of a server's files."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

OLDEST_POSTGRES: Final = 15

#: Where distributions put the programs of one version.
_PLACES: Final = ("/usr/lib/postgresql/{}/bin", "/usr/pgsql-{}/bin", "/opt/homebrew/opt/postgresql@{}/bin")


def oldest_postgres() -> Path | None:
    """Return the directory with its programs: the one in POSTGRES_BIN, or where a distribution puts them."""
    chosen = os.environ.get("POSTGRES_BIN")
    candidates = ([Path(chosen)] if chosen else []) + [Path(each.format(OLDEST_POSTGRES)) for each in _PLACES]
    return next((each for each in candidates if _version(each) == OLDEST_POSTGRES), None)


def _version(programs: Path) -> int | None:
    if not (programs / "initdb").exists():
        return None
    told = subprocess.run([programs / "postgres", "--version"], capture_output=True, text=True, check=True)
    return int(told.stdout.split("(PostgreSQL) ")[1].split(".")[0])


def copied(source: Path, target: Path) -> None:
    """Copy a directory with its owner: the data of a server that has stopped."""
    shutil.copytree(source, target)
    owner = source.stat()
    for each in (target, *target.rglob("*")):
        os.chown(each, owner.st_uid, owner.st_gid)
