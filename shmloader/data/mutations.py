"""
Which attributes of a dataset its own code changes while it is read.

A list that a dataset appends to in `__getitem__`, or a dict that it keeps decoded samples in,
cannot be replaced by one that does not change. The source says so in most cases: what is looked for
is a change of `self.name`, or of something in it, in a method that fetching calls.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

_FETCHING = ("__getitem__", "__getitems__", "__iter__", "__next__", "__len__")
_CHANGES = frozenset(
    [
        "append",
        "extend",
        "insert",
        "remove",
        "pop",
        "clear",
        "sort",
        "reverse",
        "update",
        "setdefault",
        "popitem",
        "move_to_end",
        "appendleft",
    ]
)


def changed_while_read(kind: type) -> dict[str, str]:
    """
    Find the attributes that reading an object of a class changes.

    Returns:
        The name of each, with that of the method. A class whose source is not there changes none.
    """
    changed: dict[str, str] = {}
    todo = [name for name in _FETCHING if _source_of(kind, name)]
    seen = set(todo)
    while todo:
        method = todo.pop()
        tree = _source_of(kind, method)
        for node in ast.walk(tree) if tree else ():
            for name in _changed_by(node):
                changed.setdefault(name, method)
            called = _called_on_self(node)
            if called is not None and called not in seen:
                seen.add(called)
                todo.append(called)
    return changed


def _source_of(kind: type, method: str) -> ast.AST | None:
    """Parse a method of a class; None if it has none that is written in Python and at hand."""
    function: Any = inspect.getattr_static(kind, method, None)
    if isinstance(function, property):
        function = function.fget
    elif isinstance(function, classmethod | staticmethod):
        function = function.__func__
    if not inspect.isfunction(function):
        return None
    function = inspect.unwrap(function)
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None


def _changed_by(node: ast.AST) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        targets = [node.target]
    elif isinstance(node, ast.Delete):
        targets = node.targets
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        targets = [node.func.value] if node.func.attr in _CHANGES else []
    elif isinstance(node, ast.For | ast.AsyncFor):
        targets = [node.target]
    for target in targets:
        for part in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
            name = _attribute_of_self(part)
            if name is not None:
                yield name


def _attribute_of_self(node: ast.AST) -> str | None:
    """Return the name in `self.name`, `self.name[0]["k"]` and `self.name.other`, or None."""
    while isinstance(node, ast.Subscript | ast.Attribute | ast.Starred):
        inner = node.value
        if isinstance(node, ast.Attribute) and _is_self(inner):
            return node.attr
        node = inner
    return None


def _called_on_self(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and _is_self(node.value):
        return node.attr  # called or not: a property's code runs too
    return None


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"
