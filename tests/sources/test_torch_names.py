"""docs/torch.md lists the private names of torch that are used here, and no others."""

import ast
import inspect
import re
from pathlib import Path

import torch
import torch.utils.data.dataloader as torchs

ROOT = next(path for path in Path(__file__).resolve().parents if (path / "setup.py").exists())
PACKAGE = ROOT / "shmloader"
PAGE = (ROOT / "docs" / "torch.md").read_text()
LISTED = set(re.findall(r"`(torch\.[\w.]+)`", PAGE))
MODULES = [path for path in sorted(PACKAGE.rglob("*.py")) if "cli" not in path.parts]
COMPILED = sorted(PACKAGE.rglob("*.pyx"))
# Where attributes of iterators are used.
_ITERATORS = ("iterator.py", "single.py", "opening.py", "running.py")
PARTS_OF_CORE = re.compile(r"getattr\((torch\.\w+), \"(_\w+)\"|\b(torch(?:\.\w+)*\._[a-z]\w*)")


def names_of_torch(tree):
    """List the dotted names of torch that a module imports or reaches from an import."""
    known, names = {"torch": "torch"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] == "torch":
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in known:
            names.add(known[node.id])
        elif isinstance(node, ast.Attribute):
            base, *rest = ast.unparse(node).split(".")
            if base in known and all(part.isidentifier() for part in rest):
                names.add(".".join([known[base], *rest]))
    return names


def private_only(names):
    """Keep names with a private part, and of these the longest: a.b.c stands for a.b too."""
    private = {name for name in names if re.search(r"\._(?!_)", name)}
    return {name for name in private if not any(other.startswith(f"{name}.") for other in private)}


def attributes(tree):
    """List the names of methods and of attributes that a source defines or uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Attribute):
            yield node.attr


def test_names_are_listed():
    """The page lists the private names of torch that the Python modules use, and no others."""
    used = private_only(set().union(*(names_of_torch(ast.parse(p.read_text())) for p in MODULES)))
    compiled = {
        f"{match[1]}.{match[2]}" if match[1] else match[3]
        for path in COMPILED
        for match in PARTS_OF_CORE.finditer(path.read_text())
    }

    assert len(used) > 20
    assert LISTED == used | compiled


def test_storages_in_shared_memory_are_asked_for_where_the_page_says():
    """The page names every module of torch that asks for a storage in shared memory."""
    torchs_folder = Path(torch.__file__).parent
    callers = {
        f"torch/{path.relative_to(torchs_folder).as_posix()}"
        for path in torchs_folder.rglob("*.py")
        if b"._new_shared(" in path.read_bytes()
    }

    assert callers == set(re.findall(r"`(torch/[\w/]+\.py)`", PAGE))


def test_attributes_of_the_iterators_are_listed():
    """The page lists what our iterators share with torch's: methods and attributes."""
    base = [torchs._BaseDataLoaderIter, torchs._MultiProcessingDataLoaderIter]
    base.append(torchs._SingleProcessDataLoaderIter)
    theirs = {name for each in base for name in attributes(ast.parse(inspect.getsource(each)))}
    paths = [PACKAGE / "trainer" / name for name in _ITERATORS]
    paths.append(PACKAGE / "order" / "resuming" / "place.py")
    sources = [path.read_text() for path in paths]
    ours = {name for source in sources for name in attributes(ast.parse(source))}
    shared = {name for name in theirs & ours if name.startswith("_")} - {"_profiler_enabled"}

    assert set(re.findall(r"`(_\w+)`", PAGE)) == shared
