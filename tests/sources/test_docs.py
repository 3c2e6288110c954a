"""Names, links and commands in README and docs/ are those of the code."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
import torch.utils.data

import shmloader
from shmloader.options import rules

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("*.md", "bench/**/*.md", "csrc/**/*.md", "docs/**/*.md", "tests/**/*.md")
PAGES = sorted(path for place in PLACES for path in ROOT.glob(place))
FENCED = re.compile(r"^```(?P<language>[^`\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
API = ROOT / "docs" / "api.md"


def prose_of(path):
    """Read a page without its fenced blocks."""
    return FENCED.sub("", path.read_text())


def anchor_of(heading):
    """Name a heading as a link does: lower case, no punctuation, hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def anchors_of(path):
    """List the anchors of a page's headings."""
    return {anchor_of(head) for head in re.findall(r"^#+ (.+)$", prose_of(path), re.MULTILINE)}


def links_of(path):
    """List a page's links into the repository."""
    targets = re.findall(r"\]\(([^)\s]+)\)", prose_of(path))
    return [target for target in targets if "://" not in target]


def is_dead(page, link):
    """Returns True if a link's file, or the heading that it names there, does not exist."""
    name, _, anchor = link.partition("#")
    target = (page.parent / name).resolve() if name else page
    return not target.exists() or bool(anchor and anchor not in anchors_of(target))


def section_of(text, heading):
    """Read the text between a heading and the next."""
    section = text.partition(f"{heading}\n")[2]
    return re.split(r"^#+ ", section, maxsplit=1, flags=re.MULTILINE)[0]


def first_cells(text, heading):
    """List the names in backticks in the first column of the table under a heading."""
    cells = re.findall(r"^\| (.*?) \|", section_of(text, heading), re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def own_options():
    """List the options of our DataLoader that torch's does not have."""
    ours = inspect.signature(shmloader.DataLoader).parameters
    torchs = inspect.signature(torch.utils.data.DataLoader).parameters
    return sorted(ours.keys() - torchs.keys())


def own_methods():
    """List the public methods of our DataLoader that torch's has not."""
    found = vars(shmloader.DataLoader).items()
    torchs = torch.utils.data.DataLoader
    return [name for name, value in found if is_public(name, value) and not hasattr(torchs, name)]


def is_public(name, value):
    return inspect.isfunction(value) and not name.startswith("_")


def is_error(value):
    return isinstance(value, type) and issubclass(value, Exception)


def fields_of(record):
    return [field.name for field in dataclasses.fields(record)]


def explained_in(documented):
    """List the names that a docstring's Args or Attributes explain."""
    text = inspect.getdoc(documented)
    section = re.search(r"^(?:Args|Attributes):\n((?: .*\n?)+)", text, re.MULTILINE)[1]
    names = re.findall(r"^    (\w[\w, ]*):", section, re.MULTILINE)
    return [name for line in names for name in line.split(", ")]


@pytest.mark.thorough
def test_links_lead_somewhere():
    """A link names a file of the repository, and a heading that it has."""
    assert [] == [
        (str(page), link) for page in PAGES for link in links_of(page) if is_dead(page, link)
    ]


def test_every_page_is_in_the_index():
    """docs/README.md links to each page beside it, once: its links are the contents of the site."""
    index = ROOT / "docs" / "README.md"
    pages = {path.name for path in index.parent.glob("*.md")} - {index.name}

    assert sorted(pages) == sorted(link for link in links_of(index) if "/" not in link)


def test_names_are_listed():
    """docs/api.md has a line for each public name, and lets sphinx write out its docstring."""
    text = API.read_text()

    assert sorted(shmloader.__all__) == sorted(first_cells(text, "# API"))
    assert sorted(shmloader.__all__) == sorted(
        re.findall(r"^\.\. auto\w+:: shmloader\.(\w+)", text, re.M)
    )


def test_builtins_are_listed():
    """docs/api.md says of each error and warning which builtin catches it too."""
    rows = re.findall(r"^\| \[`(\w+)`\]\(#errors-.*?\) \| an? `(\w+)`:", API.read_text(), re.M)
    errors = [
        kind for kind in (getattr(shmloader, name) for name in shmloader.__all__) if is_error(kind)
    ]

    assert {kind.__name__ for kind in errors} - {"ShmloaderError"} == {name for name, _ in rows}
    assert [] == [
        name
        for name, builtin in rows
        if builtin not in {base.__name__ for base in getattr(shmloader, name).__mro__}
    ]


def test_options_and_methods_are_listed():
    """docs/api.md has a row for each option and method that torch's DataLoader does not have."""
    section = section_of(API.read_text(), "### Options and methods")
    named = re.findall(r"^\| [\w ]*\| `(\w+)", section, re.MULTILINE)

    assert sorted([*own_options(), *own_methods()]) == sorted(named)


@pytest.mark.parametrize(
    ("documented", "names"),
    [
        (shmloader.DataLoader, own_options),
        (shmloader.Device, lambda: fields_of(shmloader.Device)),
        (shmloader.Stats, lambda: fields_of(shmloader.Stats)),
        (shmloader.Held, lambda: fields_of(shmloader.Held)),
        (shmloader.Epoch, lambda: fields_of(shmloader.Epoch)),
        (shmloader.Report, lambda: fields_of(shmloader.Report)),
    ],
    ids=["DataLoader", "Device", "Stats", "Held", "Epoch", "Report"],
)
def test_docstrings_are_complete(documented, names):
    """A docstring explains each option of a loader, or each field of a record."""
    assert sorted(names()) == sorted(explained_in(documented))


def test_rules_are_listed():
    """docs/api.md has a row for each fact with which options are refused, and names those."""
    rows = {}
    for rule in rules.RULES:
        names = " with ".join(f"`{name}`" for name in rule.options)
        rows.setdefault(rule.fact.words, []).append(names)
    table = section_of(API.read_text(), "#### What is refused")

    assert [f"| {fact} | {', '.join(names)} |" for fact, names in rows.items()] == [
        line for line in table.splitlines() if line.startswith("| ")
    ][2:]


def test_states_are_listed():
    """The table of states has the keys of `stats().slots`."""
    with shmloader.DataLoader([1, 2], num_workers=1) as loader:
        list(loader)
        states = list(loader.stats().slots)
    words = ROOT / "docs" / "words.md"

    assert sorted(states) == sorted(first_cells(words.read_text(), "## States of a slot"))


def test_switches_are_listed():
    """The table of environment variables has those that the package reads, and no others."""
    sources = [*(ROOT / "shmloader").rglob("*.py"), *(ROOT / "shmloader").rglob("*.p[yx][xi]")]
    names = {
        name
        for path in sources
        for name in re.findall(r"[\"'](SHMLOADER_\w+)[\"']", path.read_text())
    }

    assert sorted(names) == first_cells(API.read_text(), "## Environment variables")


def test_commands_are_listed():
    """docs/development.md has every target of the Makefile, and no other."""
    phony = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = (ROOT / "docs" / "development.md").read_text()
    commands = first_cells(text, "## Commands")
    named = {command.split()[1] for command in commands if command.startswith("make ")}

    assert set(" ".join(phony).split()) - {"always"} == named


def test_the_way_of_a_batch_goes_through_files_that_are_there():
    """Each file that docs/a_batch.md names exists, in the package or beside it."""
    names = re.findall(r"`([a-z_/]+\.(?:py|pyx|c|h))`", (ROOT / "docs" / "a_batch.md").read_text())
    places = [ROOT, ROOT / "shmloader"]

    assert len(names) > 30
    assert [] == [name for name in names if not any((each / name).exists() for each in places)]
