"""Mistakes in Python: mutmut's operators, and two for statements and conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import libcst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

from tests.mutants.site import ROOT, Site

FOLDERS = ("transport", "trainer", "order", "memory")

# Words for people, and what only type checkers read: a mistake there is none.
_TELLING = {"tell", "warn", "warn_aside", "warn_explicit", "debug", "info", "add_note", "cast"}
_UNHEARD = {"is_heard"}  # asks for words alone
_WORDS = {"__repr__", "__str__"}
_SKIPPED = (
    *(libcst.Annotation, libcst.Decorator, libcst.Import, libcst.ImportFrom, libcst.Assert),
    *(libcst.BaseString, libcst.TypeAlias, libcst.Raise),
)


def _dropped(node: libcst.CSTNode) -> Iterable[libcst.CSTNode]:
    """Leave out a statement that is a call or raises."""
    if isinstance(node, libcst.Raise) or isinstance(node.value, libcst.Call):  # type: ignore[attr-defined]
        yield libcst.Pass()


def _negated(node: Any) -> Iterable[libcst.CSTNode]:
    """Turn a condition around."""
    inner = node.test.with_changes(lpar=[libcst.LeftParen()], rpar=[libcst.RightParen()])
    yield node.with_changes(test=libcst.UnaryOperation(libcst.Not(), inner))


# mutmut asks this of every node, which takes most of the time.
_SWAPPED = (
    *(libcst.BinaryOperation, libcst.UnaryOperation, libcst.BooleanOperation),
    *(libcst.ComparisonTarget, libcst.AugAssign),
)
Operator = tuple[type | tuple[type, ...], Callable[[Any], Iterable[libcst.CSTNode]]]
OPERATORS: list[Operator] = [
    *(
        (_SWAPPED if operator is mutators.operator_swap_op else kind, operator)
        for kind, operator in mutators.mutation_operators
        if operator is not mutators.operator_string
    ),
    (libcst.Expr, _dropped),
    (libcst.Raise, _dropped),
    (libcst.If, _negated),
    (libcst.While, _negated),
]


def sites() -> Iterator[Site]:
    """List the places of all files, file by file."""
    for folder in FOLDERS:
        for path in sorted((ROOT / "shmloader" / folder).rglob("*.py")):
            yield from sites_of(str(path.relative_to(ROOT)), path.read_text())


def sites_of(path: str, text: str) -> Iterator[Site]:
    """List the places of a file."""
    wrapper = MetadataWrapper(libcst.parse_module(text), unsafe_skip_copy=True)
    walk = _Walk(path, text.splitlines())
    wrapper.visit(walk)
    yield from sorted(walk.found, key=lambda each: (each.line, each.column))


class _Walk(libcst.CSTVisitor):
    """Goes through a file, but not where a mistake would be none."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self, path: str, lines: list[str]) -> None:
        super().__init__()
        self.found: list[Site] = []
        self._path = path
        self._lines = lines
        self._module: libcst.Module | None = None
        self._within: list[str] = []

    def on_visit(self, node: libcst.CSTNode) -> bool:
        """Note what the operators make of a node. Returns True if they may have its children."""
        if isinstance(node, libcst.Module):
            self._module = node
        if _is_for_people(node):
            return False
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                self._note(node, operator)
        if isinstance(node, libcst.FunctionDef | libcst.ClassDef):
            self._within.append(node.name.value)
        return not isinstance(node, _SKIPPED)

    def on_leave(self, original_node: libcst.CSTNode) -> None:
        """Leave a function or class."""
        is_entered = not _is_for_people(original_node)
        if isinstance(original_node, libcst.FunctionDef | libcst.ClassDef) and is_entered:
            self._within.pop()

    def _note(self, node: libcst.CSTNode, operator: Callable[[Any], Any]) -> None:
        changed = list(operator(node))
        start = self.get_metadata(PositionProvider, node).start
        name = operator.__name__.removeprefix("operator_").removeprefix("_")
        scope = f"{'.'.join(self._within)} {self._lines[start.line - 1].strip()}"
        module = self._module
        assert module is not None

        def texts() -> list[str]:
            replaced = (module.deep_replace(node, each) for each in changed)
            return [each.code for each in replaced]  # type: ignore[union-attr]

        if changed:
            self.found.append(Site(self._path, start.line, start.column, name, scope, texts))


def _is_for_people(node: libcst.CSTNode) -> bool:
    """Returns True for what nothing but words or types comes of."""
    match node:
        case libcst.FunctionDef(name=libcst.Name(name)):
            return name in _WORDS
        case libcst.If(test=libcst.Name("TYPE_CHECKING")):
            return True
        case libcst.If(test=test) | libcst.IfExp(test=test):
            return _called(test) in _UNHEARD
        case libcst.Expr(value=value):
            return _called(value) in _TELLING
        case libcst.Call():
            return _called(node) in _TELLING or _called(node) in ("TypeVar", "NewType")
        case libcst.Assign(targets=[libcst.AssignTarget(target=libcst.Name(name))]):
            return name == "__all__" or name == "__slots__"
    return False


def _called(node: libcst.CSTNode) -> str:
    """The last name of the function that an expression calls; empty: it calls none."""
    match node:
        case libcst.Call(func=libcst.Name(name)):
            return name
        case libcst.Call(func=libcst.Attribute(attr=libcst.Name(name))):
            return name
    return ""
