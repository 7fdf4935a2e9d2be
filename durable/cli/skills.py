"""`durable skills`: copy what agents that write code have to know of durable into a project."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Final

import durable
from durable.cli.output import Exit, Output
from durable.cli.subcommand import RefusedError, argument, subcommand

#: Where a package has its skills, by a convention that several agents follow.
SKILLS: Final = Path(durable.__file__).parent / ".agents" / "skills"


@subcommand(
    "skills",
    "Copy the skill with which coding agents write workflows into a project.",
    argument(
        "folder",
        nargs="?",
        type=Path,
        default=Path(".agents/skills"),
        metavar="FOLDER",
        help="where the agent looks for skills, .claude/skills for example (default: .agents/skills)",
    ),
    argument("--force", action="store_true", help="write over files that have been changed"),
)
def skills_command(options: Namespace, output: Output) -> int:
    """Copy each file that differs. Nothing is written unless everything may be."""
    found = {options.folder / path.relative_to(SKILLS): path.read_bytes() for path in SKILLS.rglob("*.md")}
    other = {target: data for target, data in found.items() if not (target.is_file() and target.read_bytes() == data)}
    changed = sorted(str(each) for each in other if each.exists())
    if changed and not options.force:
        raise RefusedError(
            f"{', '.join(changed)} is not what this version of durable has: it is of another version, or was edited. "
            "Compare them, and repeat the command with --force"
        )
    try:
        for target, data in other.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
    except OSError as error:
        raise RefusedError(f"cannot write the skill: {error}; name a folder that can be written") from error
    for target in sorted(found):
        output.say(f"{target}: {'written' if target in other else 'is up to date'}")
    return Exit.OK
