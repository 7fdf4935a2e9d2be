"""The command line's words for what a page offers: "copy as command"."""

from __future__ import annotations

from durable.cli.wording import command

__all__ = ["command"]
