"""How sphinx makes the site of the Markdown pages: `make docs`."""

from __future__ import annotations

import re
from importlib import metadata

from sphinx.application import Sphinx

project = "shmloader"
release = metadata.version(project)
html_title = project
html_theme = "furo"
html_extra_path = ["index.html"]  # leads to the start page
html_copy_source = False

# The repository is the source folder, so that a link leads to the same page here and on GitHub.
root_doc = "docs/README"
include_patterns = ["*.md", "bench/**.md", "csrc/*.md", "docs/*.md", "tests/**.md"]
exclude_patterns = [".*", "build", "dist", "*.egg-info", "shmloader"]
suppress_warnings = ["toc.not_included"]  # a folder's README links to the pages below it

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_heading_anchors = 4  # named as on GitHub
highlight_language = "none"  # for blocks that name none
default_role = "code"  # docstrings write `name` as pages do
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"  # torch's arguments are described by torch
napoleon_use_ivar = True
napoleon_custom_sections = [("While iterating", "params_style")]

LINK = re.compile(r"\]\(([\w/.-]+)\.md\)")


def setup(app: Sphinx) -> None:
    app.connect("source-read", list_pages)


def list_pages(app: Sphinx, name: str, source: list[str]) -> None:
    """Make the site's contents from the links of the start page, so that there is one list."""
    if name == root_doc:
        sections = re.split(r"^## ", source[0], flags=re.MULTILINE)
        source[0] += "".join(map(contents, sections))


def contents(section: str) -> str:
    """Make the contents of one section: its heading, and the pages that it links to."""
    heading, _, text = section.lstrip("# ").partition("\n")
    pages = "\n".join(LINK.findall(text))
    return f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"
