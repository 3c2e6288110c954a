"""Checks of the sources that need not run them: comments, imports, names, docstrings."""

from __future__ import annotations

import ast
import functools
import graphlib
import importlib
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "shmloader"
C_SOURCES = sorted(
    path for folder in ("csrc", "tests/simulation/c") for path in (ROOT / folder).rglob("*.[ch]")
)
TEST_FILES = sorted((ROOT / "tests").rglob("test_*.py"))

# A folder says in which process a line runs, or which resource it owns. A module imports from its
# own folder and from those of lower rank, never from another of its own rank or from above.
RANKS = {
    "exports": 12,
    "cli": 12,
    "interception": 11,
    "tuning": 11,
    "publishing": 11,
    "dataloader": 10,
    "introspection": 9,
    "trainer": 8,
    "order": 7,
    "device": 7,
    "pinning": 6,
    "autoscaling": 6,
    "options": 5,
    "transport": 5,
    "pool": 7,
    "worker": 4,
    "processes": 3,
    "memory": 2,
    "core": 1,
    "data": 3,
    "errors": 0,
    "log": 0,
    "stats": 0,
    "setup": 0,
    "samples": 1,
    "advice": 1,
    "views": 1,
}
ENTRANCES = {"__init__", "__main__"}  # of the package; only commands import it as users do

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
ATOMIC = re.compile(r"\batomic_(?P<verb>[a-z_]+)\s*\((?P<rest>[^;]*)")
SYNC = re.compile(
    r"sync (?:(?P<release>[a-z-]+)-R -> (?P<to>[a-z-]+)-A"
    r"|(?P<acquire>[a-z-]+)-A <- (?P<source>[a-z-]+)-R): \S"
)
RELAXED = re.compile(r"relaxed: \S")


@dataclass(frozen=True)
class Comment:
    """A C comment and the lines it covers, both ends included."""

    text: str
    first: int
    last: int


@dataclass(frozen=True)
class AtomicCall:
    """One call of an `atomic_*` function, where it stands, and the comments that belong to it."""

    place: str
    verb: str
    orders: tuple[str, ...]  # of a compare-and-exchange also that of its failure
    comments: str

    @property
    def releases(self) -> bool:
        return bool({"release", "acq_rel"} & {*self.orders}) or (
            "seq_cst" in self.orders and not self.verb.startswith("load")
        )

    @property
    def acquires(self) -> bool:
        return bool({"acquire", "acq_rel"} & {*self.orders}) or (
            "seq_cst" in self.orders and self.verb.startswith("load")
        )


def comments_of(source: str) -> list[Comment]:
    """Find the comments of a C source."""
    return [
        Comment(
            " ".join(match[0].split()),
            source.count("\n", 0, match.start()) + 1,
            source.count("\n", 0, match.end()) + 1,
        )
        for match in COMMENT.finditer(source)
    ]


def atomic_calls(path: Path) -> Iterator[AtomicCall]:
    """
    Find the atomic calls of a C source; a comment belongs to the calls up to two lines below it.
    """
    source = path.read_text()
    comments = comments_of(source)
    code = COMMENT.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), source)
    for match in ATOMIC.finditer(code):
        line = code.count("\n", 0, match.start()) + 1
        near = [note for note in comments if note.first <= line and line - 2 <= note.last]
        orders = re.findall(r"memory_order_([a-z_]+)", match["rest"])
        yield AtomicCall(
            place=f"{path.relative_to(ROOT)}:{line}",
            verb=match["verb"],
            orders=tuple(orders[: 1 + ("compare" in match["verb"])]) or ("seq_cst",),
            comments=" ".join(note.text for note in near),
        )


ATOMIC_CALLS = [call for path in C_SOURCES for call in atomic_calls(path)]


def sync_ends(call: AtomicCall) -> Iterator[tuple[str, str]]:
    """List the ends that a call's comments name: ("release" or "acquire", name)."""
    for match in SYNC.finditer(call.comments):
        yield ("release", match["release"]) if match["release"] else ("acquire", match["acquire"])


def sync_names(end: str) -> set[str]:
    """List the names that some atomic call carries as this end."""
    return {name for call in ATOMIC_CALLS for side, name in sync_ends(call) if side == end}


def unsaid(call: AtomicCall) -> Iterator[str]:
    """List what a call's comments do not say of its order."""
    sides = {side for side, _ in sync_ends(call)}
    if call.releases != ("release" in sides):
        yield f"{call.place}: as `sync NAME-R -> NAME-A: ...` above"
    if call.acquires != ("acquire" in sides):
        yield f"{call.place}: as `sync NAME-A <- NAME-R: ...` above"
    if not (call.releases or call.acquires or RELAXED.search(call.comments)):
        yield f"{call.place}: no `relaxed: ...` above"


def test_atomic_calls_say_their_orders():
    """An atomic call names the partners it synchronizes with, or says why it needs no order."""
    assert [] == [said for call in ATOMIC_CALLS for said in unsaid(call)]


def test_sequential_consistency_is_explained():
    """An atomic call is seq_cst only if its comment says so, in a file that names the case."""
    for call in ATOMIC_CALLS:
        if "seq_cst" in call.orders:
            assert "seq_cst" in call.comments, call.place
            assert "store-load" in (ROOT / call.place.split(":")[0]).read_text(), call.place


def test_sync_comments_name_one_pair():
    """Both halves of a sync comment carry the same name."""
    pairs = [
        (match["release"] or match["acquire"], match["to"] or match["source"])
        for call in ATOMIC_CALLS
        for match in SYNC.finditer(call.comments)
    ]

    assert [first for first, _ in pairs] == [second for _, second in pairs]


def test_sync_names_have_both_ends():
    """Every release has an acquire of its name, and every acquire a release."""
    assert sync_names("release") == sync_names("acquire")


def test_sync_names_are_listed():
    """The table in csrc/README.md lists the pairs of the code, all of them and no others."""
    listed = set(re.findall(r"\b([a-z-]+)-[RA]\b", (ROOT / "csrc" / "README.md").read_text()))

    assert listed == sync_names("release")


def test_c_lines_fit():
    """No line of C is longer than 100 columns; ruff and cython-lint see to the other languages."""
    lines = [(path.name, line) for path in C_SOURCES for line in path.read_text().splitlines()]

    assert [] == [(name, line) for name, line in lines if len(line) > 100]


def layered_modules() -> list[Path]:
    """List the package's modules whose imports go one way: all but its entrances."""
    entrances = {PACKAGE / f"{name}.py" for name in ENTRANCES}
    return [path for path in sorted(PACKAGE.rglob("*.py")) if path not in entrances]


MODULES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in layered_modules()
}
STUB = ast.parse((PACKAGE / "core" / "_core.pyi").read_text())
COMPILED = {"core._core": sorted((PACKAGE / "core").glob("*.p[yx][xdi]"))}


def imports_of_package(tree: ast.AST) -> set[str]:
    """
    List the modules of this package that a source imports, without the package's name ("" for it).
    """
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that they say the folder"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {known_module(name) for name in names if name.split(".")[0] == "shmloader"}


def known_module(name: str) -> str:
    """Find the module of a dotted name: its longest prefix that is a module."""
    parts = name.split(".")[1:]
    while parts and ".".join(parts) not in MODULES.keys() | COMPILED.keys():
        parts.pop()
    return ".".join(parts)


def compiled_imports() -> set[str]:
    """List the modules of this package that the parts of the extension import."""
    pattern = re.compile(r"^\s*(?:from|import)\s+(shmloader[\w.]*)\s+(?:import|as)\b", re.MULTILINE)
    sources = [path for path in COMPILED["core._core"] if path.suffix != ".pyi"]
    return {known_module(name) for path in sources for name in pattern.findall(path.read_text())}


@functools.cache
def imports_of(name: str) -> set[str]:
    """List the modules of this package that a module of it imports."""
    if name in COMPILED:
        return compiled_imports()
    return imports_of_package(ast.parse(MODULES[name].read_text()))


def test_every_folder_has_a_rank():
    """Each folder, and each module beside the folders, has a rank."""
    assert {name.split(".")[0] for name in MODULES} == RANKS.keys()


def test_imports_go_one_way():
    """A module imports from its own folder and from lower ones, never the package itself."""
    assert compiled_imports()
    for name in [*MODULES, *COMPILED]:
        folder = name.split(".")[0]
        allowed = {
            folder,
            *([""] if folder == "cli" else []),
            *(other for other, rank in RANKS.items() if rank < RANKS[folder]),
        }
        assert {target.split(".")[0] for target in imports_of(name)} <= allowed, name


def test_no_imports_in_a_circle():
    """No module imports itself by way of others."""
    graph = {name: imports_of(name) - {name} for name in MODULES}
    graph["core._core"] = imports_of("core._core")

    # Commands import the package as users do.
    assert {*graph, ""} == {*graphlib.TopologicalSorter(graph).static_order()}


def reached_from(name: str) -> set[str]:
    """List the modules that a module imports, directly or by way of others."""
    reached, ahead = set(), {name}
    while ahead:
        here = ahead.pop()
        reached.add(here)
        ahead |= imports_of(here) - reached
    return reached


def test_the_transport_stands_alone():
    """It reaches nothing of torch's loader, nor of what a DataLoader is, by any way."""
    clients = {"trainer", "order", "device", "data", "options", "dataloader"}
    modules = [each for each in MODULES if each.startswith("transport")] + ["worker.serve"]
    reached = set().union(*map(reached_from, modules)) - COMPILED.keys()
    sources = {each: MODULES[each].read_text() for each in reached}
    sources.update((path.name, path.read_text()) for path in COMPILED["core._core"])

    assert not {each for each in reached if each.split(".")[0] in clients}
    assert [] == [each for each, text in sources.items() if re.search(r"\butils\.data\b", text)]


def test_modules_are_found_by_their_names():
    """At most eight are loose, and each name is one module's, but for clients of the transport."""
    names = Counter(path.name for path in PACKAGE.rglob("*.py"))
    entrances = {"__init__.py", "__main__.py", "client.py"}
    assert 8 >= len([*PACKAGE.glob("*.py")])
    assert set() == {name for name, count in names.items() if count > 1} - entrances


def parts_of_core() -> list[str]:
    """List the parts of the extension in the order in which they are included."""
    root = (PACKAGE / "core" / "_core.pyx").read_text()
    return re.findall(r'^include "(\w+)\.pyx"$', root, re.MULTILINE)


def names_of_part(part: str) -> set[str]:
    """List the functions, classes and variables that a part of the extension declares."""
    files = (PACKAGE / "core").glob(f"{part}.p[xy][xd]")
    source = "".join(re.sub(r" *#.*", "", path.read_text()) for path in files)
    declared = re.findall(r"^(?:cdef|cpdef|def|class)\b[^(=:\n]*?(\w+) ?(?=[(=:\n])", source, re.M)
    return {*declared}


def test_parts_use_only_earlier_ones():
    """A part of the extension uses no name of a part that is included after it."""
    later: set[str] = set()
    for part in reversed(parts_of_core()):
        source = (PACKAGE / "core" / f"{part}.pyx").read_text()
        code = re.sub(r'""".*?"""|#[^\n]*|"[^"\n]*"', "", source, flags=re.DOTALL)
        own = names_of_part(part)
        assert set() == {*re.findall(r"(?<!\.)\b\w+\b", code)} & later - own, part
        later |= own


def project_version() -> str:
    """Read the version from the one place where it is written."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def test_newest_changes_are_of_this_version():
    """The changelog opens with the version that pyproject.toml says."""
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert headings[0] == project_version()


# Cython's own names, and two classes of which a stub that is read by any checker says no more.
NOT_IN_STUB = r"shmloader\.core\._core\.(__pyx_capi__|__test__|PackedRecord|RecordList)"
# What the stub imports is no part of what is compared, and all of torch takes half a minute.
SETTINGS = """
[mypy]
follow_imports = skip
[mypy-shmloader.core.protocol]
follow_imports = normal
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_stub_is_what_is_compiled(tmp_path):
    """_core.pyi has the names, members, arguments and defaults of the compiled module."""
    pytest.importorskip("mypy", reason="mypy is not installed")
    allowed, settings = tmp_path / "allowed", tmp_path / "mypy.ini"
    allowed.write_text(NOT_IN_STUB)
    settings.write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy.stubtest", "--mypy-config-file", settings]
    command += ["--allowlist", allowed, "--concise", "shmloader.core._core"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_stub_names_every_order():
    """The orders of the stub's literals are those of the enumeration, all of them."""
    [alias] = [
        node.value
        for node in STUB.body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_Order"
    ]
    orders = importlib.import_module("shmloader.core.protocol").Order

    assert [str(order) for order in orders] == re.findall(r"Literal\[(.*?)\]", ast.unparse(alias))


def test_every_test_states_its_property():
    """Every test function has a docstring."""
    silent = [
        f"{path}::{node.name}"
        for path in TEST_FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
        and node.name.startswith("test_")
        and not ast.get_docstring(node)
    ]

    assert silent == []


def lines_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of a function behind its signature and docstring."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return node.body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_functions_and_classes_are_short():
    """A function has at most 25 lines of its own, a class 400."""
    trees = {path: ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    long = []
    for path, node in ((path, node) for path, tree in trees.items() for node in ast.walk(tree)):
        lines, most = 0, 0
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines, most = lines_of(node), 25
        elif isinstance(node, ast.ClassDef):
            lines, most = node.end_lineno - node.lineno, 399
        if lines > most:
            place = f"{path.relative_to(PACKAGE)}:{node.lineno}"
            long.append(f"{place}: {node.name} has {lines} lines, and may have {most}")

    assert [] == long, "\n".join(["divide these:", *long])
