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

from shmloader.data.aliases import Held, Reading

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
        for name, (method, me) in methods.items():
            for attribute in sorted(Reading(method, held, me).changed - methods.keys()):
                changed.setdefault(attribute, name)
        if held == before:
            break
    return changed


def _read_methods(kind: type) -> dict[str, tuple[_Method, str]]:
    """Find the methods that fetching calls, each with its name for the object."""
    found: dict[str, tuple[_Method, str]] = {}
    waiting = list(_FETCHING)
    seen = set(waiting)
    while waiting:
        name = waiting.pop()
        method = _source_of(kind, name)
        if method is None:
            continue
        me = _first_parameter(kind, name, method)
        found[name] = method, me
        for node in ast.walk(method):
            called = _called_on(node, me)
            if called is not None and called not in seen:
                seen.add(called)
                waiting.append(called)
    return found


def _source_of(kind: type, name: str) -> _Method | None:
    """Parse a method of a class; None if it has none that is written in Python and at hand."""
    function: Any = inspect.getattr_static(kind, name, None)
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
    if isinstance(inspect.getattr_static(kind, name), staticmethod):
        return ""
    parameters = [*method.args.posonlyargs, *method.args.args]
    return parameters[0].arg if parameters else ""


def _called_on(node: ast.AST, me: str) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == me:
        return node.attr  # called or not: a property's code runs too
    return None
