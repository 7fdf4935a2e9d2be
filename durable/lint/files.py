"""The files to read, and their text. A file that cannot be read is told of; none is imported or run."""

from __future__ import annotations

import ast
import io
import os
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

MAX_BYTES: Final = 5_000_000

#: Directories of other people's code and of caches.
_PASSED_BY: Final = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})


class UnreadableError(Exception):
    """A file that cannot be read as Python; the text says why, `line` where."""

    def __init__(self, message: str, fix: str, line: int = 1) -> None:
        super().__init__(message)
        self.fix = fix
        self.line = line


def python_files(paths: Iterable[Path]) -> Iterator[Path]:
    """Yield the files to read, each once: files as given, and all `*.py` below directories.

    Links to directories are not followed, so that no circle of them is endless. Directories that begin with a dot are
    passed by, and so are installed packages.
    """
    seen: set[str] = set()
    for path in paths:
        is_directory = os.path.isdir(path)  # noqa: PTH112  # it raises nothing
        for each in _below(path) if is_directory else (path,):
            real = os.path.realpath(each)
            if real not in seen:
                seen.add(real)
                yield each


def _below(directory: Path) -> Iterator[Path]:
    unreadable: list[Path] = []
    for parent, directories, names in os.walk(directory, onerror=lambda error: unreadable.append(Path(error.filename))):
        directories[:] = sorted(
            each
            for each in directories
            if each not in _PASSED_BY and not each.startswith(".") and not _is_environment(Path(parent) / each)
        )
        for name in sorted(names):
            if name.endswith(".py"):
                yield Path(parent) / name
    yield from unreadable


def _is_environment(directory: Path) -> bool:
    return os.path.exists(directory / "pyvenv.cfg")  # noqa: PTH110  # it raises nothing


def text_of(path: Path) -> str:
    """Return the text of a file of Python, decoded as it declares. Raises UnreadableError."""
    try:
        if path.is_dir():
            raise UnreadableError(
                "The directory cannot be read.", "Give the linter a directory that it may read, or leave it out."
            )
        if not path.is_file():
            raise UnreadableError(
                "This is not a file that can be read.", "Give a file of Python or a directory of them."
            )
        if path.stat().st_size > MAX_BYTES:
            raise UnreadableError(
                f"The file has more than {MAX_BYTES:,} bytes.", "Move data out of the code, or leave the file out."
            )
        raw = path.read_bytes()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise UnreadableError(
            f"The file cannot be read: {reason}.", "Give the linter a file that it may read, or leave it out."
        ) from None
    if b"\0" in raw:
        raise UnreadableError("The file contains null bytes.", "Save it as text, in UTF-8.")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        return raw.decode(encoding)
    except (SyntaxError, LookupError, UnicodeError) as error:
        raise UnreadableError(
            f"The file's encoding is not what it declares: {error}.",
            "Save it in UTF-8, or declare its encoding in the first line: # -*- coding: latin-1 -*-",
        ) from None


def parsed(text: str) -> ast.Module:
    """Return the tree of a text. Raises UnreadableError."""
    try:
        return ast.parse(text)
    except SyntaxError as error:
        raise UnreadableError(
            f"The file is not valid Python: {error.msg}.",
            "Correct the syntax. The linter reads the syntax of the Python it runs on.",
            error.lineno or 1,
        ) from None
    except (RecursionError, MemoryError):
        raise UnreadableError(
            "The code is nested too deeply to be read.", "Split the expression, or move data out of the code."
        ) from None
    except ValueError as error:
        raise UnreadableError(f"The file is not valid Python: {error}.", "Save it as text, in UTF-8.") from None
