"""The shell commands that pages offer to copy, in the command line's own words."""

from __future__ import annotations

from durable.cli.wording import command

__all__ = ["command"]
