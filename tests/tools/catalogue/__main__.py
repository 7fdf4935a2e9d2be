"""Bring the catalogues of translations up to date: `uv run python -m tests.tools.catalogue`.

Adds the texts that the code has marked since, with an empty translation, takes out those that are gone, and compiles
each catalogue. Prints what is left to translate. With `--add fr` it begins a catalogue for another language.
"""

from __future__ import annotations

import os
import sys

import django

from tests.tools.catalogue.files import LOCALE, bring_up_to_date

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")
django.setup()  # templates are parsed with the project's libraries

added = sys.argv[2:] if sys.argv[1:2] == ["--add"] else []
for language in sorted({*added, *(each.name for each in LOCALE.iterdir() if each.is_dir())}):
    untranslated = bring_up_to_date(language)
    sys.stdout.write(f"{language}: {len(untranslated)} to translate\n")
    for text in untranslated:
        sys.stdout.write(f"  {text}\n")
