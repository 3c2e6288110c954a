"""
Which attributes of a dataset its own code changes while it is read.

A list that a dataset appends to in `__getitem__`, or a dict that it keeps decoded samples in,
cannot be replaced by one that does not change; nor can one whose records are changed, because each
read makes a new object. The source says so in most cases: `aliases` reads the methods that fetching
calls.
"""

import ast
import inspect
import textwrap
from typing import Any

from shmloader.data.aliases import Held, Reading, is_object

_FETCHING = ("__getitem__", "__getitems__", "__iter__", "__next__", "__len__")
_ROUNDS = 10  # through methods that hand things to each other; what is known only grows

_Method = ast.FunctionDef | ast.AsyncFunctionDef


def changed_while_read(kind: type) -> dict[str, str]:
    """
    Find the attributes that reading an object of a class changes.

    Returns:
        The name of each, with that of the method. A class whose source is not there changes none.
    """
    methods = _read_methods(kind)
    changed: dict[str, str] = {}
    held: Held = {}
    for _ in range(_ROUNDS):
        before = dict(held)
        for name, versions in methods.items():
            for method, me in versions:
                for attribute in sorted(Reading(method, held, me).changed - methods.keys()):
                    changed.setdefault(attribute, name)
        if held == before:
            break
    return changed


def _read_methods(kind: type) -> dict[str, list[tuple[_Method, str]]]:
    """
    Find the methods that fetching calls, each with its name for the object.

    Those of base classes count beside those that override them, which mostly call them.
    """
    found: dict[str, list[tuple[_Method, str]]] = {}
    waiting = list(_FETCHING)
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        for base in kind.__mro__:
            method = _source_of(base, name)
            if method is None:
                continue
            me = _first_parameter(base, name, method)
            found.setdefault(name, []).append((method, me))
            for node in ast.walk(method):
                called = _called_on(node, me)
                if called is not None and called not in seen:
                    seen.add(called)
                    waiting.append(called)
    return found


def _source_of(kind: type, name: str) -> _Method | None:
    """Parse a class's own method; None if it has none that is written in Python and at hand."""
    function: Any = vars(kind).get(name)
    if isinstance(function, property):
        function = function.fget
    elif isinstance(function, classmethod | staticmethod):
        function = function.__func__
    if not inspect.isfunction(function):
        return None
    function = inspect.unwrap(function)
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, SyntaxError, TypeError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, _Method):
            node.name = name  # it may be known by another one
            return node
        if isinstance(node, ast.Lambda):
            result = ast.copy_location(ast.Return(node.body), node.body)
            return ast.FunctionDef(name, node.args, [result], [])
    return None


def _first_parameter(kind: type, name: str, method: _Method) -> str:
    """Return a method's name for its object; "" if it has none."""
    if isinstance(vars(kind)[name], staticmethod):
        return ""
    parameters = [*method.args.posonlyargs, *method.args.args]
    return parameters[0].arg if parameters else ""


def _called_on(node: ast.AST, me: str) -> str | None:
    """Name what is asked of the object, of its base classes, or of a class that is handed it."""
    if isinstance(node, ast.Attribute):
        return node.attr if is_object(node.value, me) else None  # a property's code runs too
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        return node.func.attr if is_object(node.args[0], me) else None
    return None
