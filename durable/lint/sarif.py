"""Findings as SARIF 2.1.0, which code hosts show beside the lines of a change."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final
from urllib.parse import quote

from durable.lint.findings import Finding
from durable.lint.rules import RULES

_LEVELS: Final = {"error": "error", "warning": "warning", "hint": "note"}


def as_sarif(findings: Sequence[Finding]) -> dict[str, Any]:
    """Return a log of one run of the linter."""
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.title},
            "fullDescription": {"text": rule.why},
            "help": {"text": rule.fix},
            "defaultConfiguration": {"level": _LEVELS[rule.level]},
        }
        for rule in RULES
    ]
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": {"name": "durable lint", "rules": rules}},
                "results": [_result(each) for each in findings],
            }
        ],
    }


def _result(finding: Finding) -> dict[str, Any]:
    return {
        "ruleId": finding.id,
        "level": _LEVELS[finding.level],
        "message": {"text": f"{finding.message} {finding.fix}"},
        "locations": [
            {
                "physicalLocation": {
                    "artifactLocation": {"uri": _address(finding.path)},
                    "region": {"startLine": finding.line},
                },
                **({"logicalLocations": [{"fullyQualifiedName": finding.workflow}]} if finding.workflow else {}),
            }
        ],
    }


def _address(path: str) -> str:
    pure = PurePath(path)
    return pure.as_uri() if pure.is_absolute() else quote(pure.as_posix(), errors="surrogateescape")
