"""The site: pages in Markdown, and a reference made of the package itself.

`uv run --group docs sphinx-build -W docs <out>` builds it.
Owns how the pages are put together. What they say of the package is read from its docstrings, its settings, its
command line's parsers and docs/openapi.yaml, so that it cannot say something else.
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "project.settings")

import django  # noqa: E402  # the paths come first

django.setup()

import durable  # noqa: E402  # so do the settings

project = "durable"
author = copyright = "The durable contributors"
version = release = durable.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_argparse_cli",
    "sphinx_llms_txt",
    "examples",
    "parsers_of_commands",
    "openapi",
    "settings_table",
]
exclude_patterns = ["_ext", "_build"]
nitpicky = False
default_role = "code"  # docstrings mark code with single backticks

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "durable"
html_show_sphinx = False
html_show_sourcelink = False
html_baseurl = os.environ.get("READTHEDOCS_CANONICAL_URL", "")  # of the version that is built there

# llms.txt, the list of pages for programs that read documentation, and llms-full.txt, all of their text. Made of the
# copied sources.
html_copy_source = True
llms_txt_summary = (
    "Durable workflows for Django: Python functions whose steps are recorded in the project's database, and which "
    "workers continue after crashes, deploys and month-long sleeps. Agents that write code begin with the skill: "
    "manage.py durable skills."
)
