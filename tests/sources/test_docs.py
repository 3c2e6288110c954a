"""Names, links and commands in README and docs/ are those of the code."""

import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.utils.data

import shmloader

ROOT = Path(__file__).resolve().parents[2]
PLACES = ("*.md", "bench/**/*.md", "csrc/**/*.md", "docs/**/*.md", "tests/**/*.md")
PAGES = sorted(path for place in PLACES for path in ROOT.glob(place))
FENCED = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
API = ROOT / "docs" / "api.md"


def prose_of(path):
    """Read a page without its fenced blocks."""
    return FENCED.sub("", path.read_text())


def code_of(path, language):
    """List a page's fenced blocks of one language."""
    blocks = FENCED.finditer(path.read_text())
    return [block["code"] for block in blocks if block["language"] == language]


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


def fields_of(record):
    return [field.name for field in dataclasses.fields(record)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    """A link names a file of the repository, and a heading that it has."""
    assert [] == [link for link in links_of(page) if is_dead(page, link)]


def test_every_page_is_in_the_index():
    """docs/README.md links to each page beside it."""
    index = ROOT / "docs" / "README.md"
    pages = {path.name for path in index.parent.glob("*.md")} - {index.name}

    assert pages == {link for link in links_of(index) if "/" not in link}


@pytest.mark.parametrize("page", [API, ROOT / "README.md"], ids=lambda page: page.name)
def test_options_are_listed(page):
    """The API tables name each option of DataLoader that torch's does not have."""
    named = set(re.findall(r"^\| `(\w+)` \|", page.read_text(), re.MULTILINE))

    assert [] == sorted(set(own_options()) - named)


def test_options_of_the_signature():
    """The heading of DataLoader has its own options with their defaults, and no others."""
    parameters = inspect.signature(shmloader.DataLoader).parameters
    heading = re.search(r"^## `shmloader\.DataLoader\(.*, \*, (.*)\)`$", API.read_text(), re.M)
    expected = {f"{name}={parameters[name].default}" for name in own_options()}

    assert heading
    assert expected == set(heading[1].split(", "))


@pytest.mark.parametrize(
    ("heading", "record"),
    [("### `loader.stats()`", shmloader.Stats), ("### `loader.held()`", shmloader.Held)],
    ids=["stats", "held"],
)
def test_fields_are_listed(heading, record):
    """The tables of stats() and held() have the fields of their records, in their order."""
    assert fields_of(record) == first_cells(API.read_text(), heading)


def test_states_are_listed():
    """The table of states has the keys of `stats().slots`."""
    with shmloader.DataLoader([1, 2], num_workers=1) as loader:
        list(loader)
        states = list(loader.stats().slots)
    words = ROOT / "docs" / "words.md"

    assert sorted(states) == sorted(first_cells(words.read_text(), "## States of a slot"))


def test_errors_are_listed():
    """The table of errors has every error and warning of the package but their base."""
    public = (getattr(shmloader, name) for name in shmloader.__all__)
    errors = [kind for kind in public if isinstance(kind, type) and issubclass(kind, Exception)]
    expected = {kind.__name__ for kind in errors} - {"ShmloaderError"}
    section = section_of(API.read_text(), "## Errors and warnings")
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section, re.MULTILINE)

    assert expected == {name for name, _ in rows}
    assert [] == [
        name
        for name, builtin in rows
        if builtin not in {base.__name__ for base in getattr(shmloader, name).__mro__}
    ]


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


def test_example_runs(tmp_path):
    """The example at the top of README runs as it stands, and prints what stats() returns."""
    program = tmp_path / "example.py"
    program.write_text(code_of(ROOT / "README.md", "python")[0])
    done = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, timeout=100, check=True
    )

    assert done.stdout.startswith("Stats(batches=64,")


def test_collate_example():
    """The collate function of docs/api.md pads samples of different length."""
    (example,) = code_of(API, "python")
    names = {"torch": torch, "shmloader": shmloader}
    exec(example, names)
    tokens, lengths = names["collate"]([torch.tensor([1, 2]), torch.tensor([3])])

    assert [[1, 2], [3, 0]] == tokens.tolist()
    assert [2, 1] == lengths.tolist()
