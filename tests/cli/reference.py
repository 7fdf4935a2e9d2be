"""The reference of the command line in docs/cli.md, made of the parsers: `python -m tests.cli.reference` writes it."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill
from typing import Final

DOCUMENT: Final = Path(__file__).resolve().parent.parent.parent / "docs" / "cli.md"
BEGIN: Final = "<!-- the reference: made by python -m tests.cli.reference -->\n"
END: Final = "<!-- end of the reference -->\n"
COLUMNS: Final = 100


def reference() -> str:
    """A section for each subcommand, with its arguments and options."""
    return "\n".join("\n".join(_section(name, help, parser)) for name, help, parser in _parsers())


def documented() -> str:
    """The reference as it stands in the document."""
    return DOCUMENT.read_text().partition(BEGIN)[2].partition(END)[0]


def _parsers() -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    from durable.cli.subcommands import SUBCOMMANDS  # once Django is set up

    for each in SUBCOMMANDS:
        parser = argparse.ArgumentParser(prog=each.name, add_help=False)
        each.configure(parser)
        yield each.name, each.help, parser


def _section(name: str, help: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"### `durable {' '.join([name, *_arguments(parser)])}`\n"
    yield f"{fill(help, COLUMNS, break_on_hyphens=False)}\n"
    options = [action for action in parser._actions if action.help]
    if options:
        yield "| | |\n| --- | --- |"
        for action in options:
            yield f"| {_spelled(action)} | {_help_of(action)} |"
        yield ""


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if action.option_strings:
            continue
        name = str(action.metavar or action.dest.upper())
        yield {"+": f"{name}...", "*": f"[{name}...]", "?": f"[{name}]"}.get(str(action.nargs), name)


def _spelled(action: argparse.Action) -> str:
    if not action.option_strings:
        return f"`{action.metavar or action.dest.upper()}`"
    takes_value = action.nargs != 0
    value = f" {action.metavar or action.dest.upper()}" if takes_value else ""
    return ", ".join(f"`{each}{value}`" for each in action.option_strings)


def _help_of(action: argparse.Action) -> str:
    choices = f": {', '.join(f'`{each}`' for each in action.choices)}" if action.choices else ""
    return f"{action.help}{choices}".replace("|", "\\|")


def main() -> None:
    """Write the reference into the document."""
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}{reference()}{END}{after}")


if __name__ == "__main__":
    import django

    django.setup()
    main()
