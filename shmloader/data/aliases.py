"""
What a method changes of its object's attributes, through whatever names it has for them.

Each name is followed to the attributes that it may refer to, together with how far outside it lies:
0 is an attribute, a record of it or a part of one, 1 is a new list or dict that holds such, and so
on. A store into something at 0 changes the attribute. Branches are joined, loops are read twice.
"""

import ast
from collections.abc import Iterable, Iterator

Links = frozenset[tuple[str, int]]  # the attributes, each with how far outside of it
Held = dict[str | tuple[str, int | str], Links]

NOTHING: Links = frozenset()
_FAR = 4  # what lies further outside is taken for this far
# Methods that change what they are called on.
_CHANGES = frozenset(
    (
        "append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "update",
        "setdefault", "popitem", "move_to_end", "appendleft", "extendleft", "popleft", "rotate",
        "add", "discard", "subtract", "difference_update", "intersection_update",
        "symmetric_difference_update", "__setitem__", "__delitem__", "__setattr__",
    )
)  # fmt: skip
# Functions that change their first argument, whatever module they are called from.
_CHANGERS = frozenset(
    (
        "shuffle", "heapify", "heappush", "heappop", "heapreplace", "heappushpop", "insort",
        "insort_left", "insort_right", "setattr", "delattr", "setitem", "delitem",
    )
)  # fmt: skip
_GETTERS = frozenset(("get", "pop", "popitem", "setdefault", "__getitem__"))
_VIEWS = frozenset(("items", "values", "keys", "__iter__"))
_COPIES = frozenset(
    ("list", "dict", "tuple", "set", "sorted", "reversed", "enumerate", "zip", "iter", "filter")
)
_IN_PLACE = (ast.Add, ast.Sub, ast.BitOr, ast.BitAnd, ast.BitXor)


class Reading:
    """
    One pass through a method.

    Attributes:
        changed: The attributes that it changes.
    """

    def __init__(self, method: ast.FunctionDef | ast.AsyncFunctionDef, held: Held, me: str) -> None:
        """
        Read a method.

        Args:
            held: What methods return, attributes were set to, and parameters were given, as far as
                that is known; what is found is put into it.
            me: The name of the object, often "self".
        """
        self.changed: set[str] = set()
        self._method, self._held, self._me = method.name, held, me
        parameters = [*method.args.posonlyargs, *method.args.args]
        if parameters and parameters[0].arg == me:
            del parameters[0]
        self._names: dict[str, Links] = {}
        for place, parameter in enumerate([*parameters, *method.args.kwonlyargs]):
            given = self._known((method.name, place)) | self._known((method.name, parameter.arg))
            self._names[parameter.arg] = given
        self._read(method.body)

    # Statements

    def _read(self, block: Iterable[ast.AST]) -> None:
        for statement in block:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._read_perhaps(statement.body)
            else:
                for node in _headed(statement):
                    self._note(node)
                self._follow(statement)

    def _follow(self, statement: ast.AST) -> None:
        if isinstance(statement, ast.Assign):
            for target in statement.targets:
                self._bind(target, self._links(statement.value))
        elif isinstance(statement, ast.AnnAssign):
            if statement.value is not None:
                self._bind(statement.target, self._links(statement.value))
        elif isinstance(statement, ast.AugAssign):
            self._add(statement)
        elif isinstance(statement, ast.Delete):
            for target in statement.targets:
                self._store(target)
        elif isinstance(statement, ast.Return):
            self._hold(self._method, self._links(statement.value))
        elif isinstance(statement, ast.With | ast.AsyncWith):
            for item in statement.items:
                if item.optional_vars is not None:
                    self._bind(item.optional_vars, self._links(item.context_expr))
            self._read(statement.body)
        elif isinstance(statement, ast.If):
            before = dict(self._names)
            self._read(statement.body)
            after, self._names = self._names, before
            self._read(statement.orelse)
            self._join(after)
        else:
            self._follow_blocks(statement)

    def _follow_blocks(self, statement: ast.AST) -> None:
        """Read the blocks of a loop, a try or a match: each may run, or not, or again."""
        is_loop = isinstance(statement, ast.For | ast.AsyncFor | ast.While)
        for _ in range(2 if is_loop else 1):
            if isinstance(statement, ast.For | ast.AsyncFor):
                self._bind(statement.target, _inside(self._links(statement.iter)))
            if isinstance(statement, ast.Match):
                self._bind_captures(statement)
            for block in _blocks_of(statement):
                self._read_perhaps(block)

    def _bind_captures(self, statement: ast.Match) -> None:
        links = self._links(statement.subject)
        for case in statement.cases:
            for part in ast.walk(case.pattern):
                for name in (getattr(part, "name", None), getattr(part, "rest", None)):
                    if name is not None:
                        self._names[name] = links | _inside(links)

    def _read_perhaps(self, block: Iterable[ast.AST]) -> None:
        before = dict(self._names)
        self._read(block)
        self._join(before)

    def _join(self, others: dict[str, Links]) -> None:
        for name, links in others.items():
            self._names[name] = self._names.get(name, NOTHING) | links

    def _add(self, statement: ast.AugAssign) -> None:
        target = statement.target
        if not isinstance(target, ast.Name):
            self._bind(target, self._links(statement.value))
        elif isinstance(statement.op, _IN_PLACE) and not isinstance(
            statement.value,
            ast.Constant | ast.JoinedStr,  # a number or a text: that makes a new one
        ):
            self._change(self._links(target))

    # Names

    def _bind(self, target: ast.expr, links: Links) -> None:
        if isinstance(target, ast.Name):
            self._names[target.id] = links
        elif isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._bind(part, links if isinstance(part, ast.Starred) else _inside(links))
        elif isinstance(target, ast.Starred):
            self._bind(target.value, _copied(links))
        else:
            self._store(target)
            if isinstance(target, ast.Attribute) and self._is_me(target.value):
                self._hold(target.attr, links)
            else:
                self._put_into(target, links)

    def _store(self, target: ast.expr) -> None:
        """Note that an attribute or an item is set or deleted."""
        if isinstance(target, ast.Tuple | ast.List):
            for part in target.elts:
                self._store(part)
        elif isinstance(target, ast.Attribute) and self._is_me(target.value):
            self.changed.add(target.attr)
        elif isinstance(target, ast.Attribute | ast.Subscript):
            self._change(self._links(target.value))

    def _put_into(self, thing: ast.expr, links: Links) -> None:
        while isinstance(thing, ast.Attribute | ast.Subscript):
            thing = thing.value
        if isinstance(thing, ast.Name) and thing.id != self._me:
            self._names[thing.id] = self._names.get(thing.id, NOTHING) | _outside(links)

    def _change(self, links: Links) -> None:
        self.changed.update(name for name, far in links if far == 0)

    def _hold(self, what: str | tuple[str, int | str], links: Links) -> None:
        self._held[what] = self._known(what) | links

    def _known(self, what: str | tuple[str, int | str]) -> Links:
        return self._held.get(what, NOTHING)

    def _is_me(self, node: ast.AST) -> bool:
        return is_object(node, self._me)

    # Expressions

    def _note(self, node: ast.AST) -> None:
        """Note what evaluating an expression binds and changes; its parts are noted apart."""
        if isinstance(node, ast.NamedExpr):
            self._bind(node.target, self._links(node.value))
        elif isinstance(node, ast.comprehension):
            self._bind(node.target, _inside(self._links(node.iter)))
        elif isinstance(node, ast.Yield):
            self._hold(self._method, _outside(self._links(node.value)))
        elif isinstance(node, ast.YieldFrom):
            self._hold(self._method, self._links(node.value))
        elif isinstance(node, ast.Call):
            self._note_call(node)

    def _note_call(self, call: ast.Call) -> None:
        name = _name_of(call.func)
        first = self._links(call.args[0]) if call.args else NOTHING
        if name in _CHANGERS:
            self._change(first)
        if not isinstance(call.func, ast.Attribute):
            return
        owner = call.func.value
        if self._is_me(owner):
            for place, argument in enumerate(call.args):
                self._hold((call.func.attr, place), self._links(argument))
            for keyword in call.keywords:
                if keyword.arg is not None:
                    self._hold((call.func.attr, keyword.arg), self._links(keyword.value))
        elif name in _CHANGES:
            is_class = isinstance(owner, ast.Name) and owner.id in ("list", "dict", "set")
            self._change(first if is_class else self._links(owner))
            for argument in call.args:
                self._put_into(owner, self._links(argument))

    def _links(self, node: ast.AST | None) -> Links:
        """Find the attributes that the value of an expression may be, be in, or hold."""
        if isinstance(node, ast.Name):
            return self._names.get(node.id, NOTHING)
        if isinstance(node, ast.Attribute):
            if self._is_me(node.value):
                return frozenset([(node.attr, 0)]) | self._known(node.attr)
            return _inside(self._links(node.value))
        if isinstance(node, ast.Subscript):
            links = self._links(node.value)
            return _copied(links) if isinstance(node.slice, ast.Slice) else _inside(links)
        if isinstance(node, ast.Call):
            return self._links_of_call(node)
        if isinstance(node, ast.NamedExpr | ast.Await):
            return self._links(node.value)
        if isinstance(node, ast.Starred):
            return _inside(self._links(node.value))
        if isinstance(node, ast.IfExp):
            return self._all((node.body, node.orelse))
        if isinstance(node, ast.BoolOp):
            return self._all(node.values)
        if isinstance(node, ast.BinOp):
            return _copied(self._all((node.left, node.right)))
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return _outside(self._all(node.elts))
        if isinstance(node, ast.Dict):
            pairs = list(zip(node.keys, node.values, strict=True))
            merged = self._all(value for key, value in pairs if key is None)
            return _copied(merged) | _outside(self._all(value for key, value in pairs if key))
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return _outside(self._links(node.elt))
        if isinstance(node, ast.DictComp):
            return _outside(self._links(node.value))
        return NOTHING

    def _links_of_call(self, call: ast.Call) -> Links:
        name, function = _name_of(call.func), call.func
        if isinstance(function, ast.Attribute):
            if self._is_me(function.value):
                return self._links(function)
            if call.args and self._is_me(call.args[0]):  # a base class, asked by its name
                return self._known(name)
            owner = self._links(function.value)
            if name in _GETTERS:
                return _inside(owner) | self._all(call.args[1:])
            if name in _VIEWS:
                return owner
            if name == "copy":  # of a dict, or copy's own
                return _copied(owner | self._all(call.args))
            return NOTHING
        if name == "getattr" and len(call.args) > 1 and self._is_me(call.args[0]):
            named = getattr(call.args[1], "value", None)
            return frozenset([(named, 0)]) if isinstance(named, str) else NOTHING
        if name in _COPIES or name == "copy":
            return _copied(self._all(call.args))
        return _inside(self._all(call.args)) if name == "next" else NOTHING

    def _all(self, nodes: Iterable[ast.AST]) -> Links:
        return NOTHING.union(*(self._links(node) for node in nodes))


def is_object(node: ast.AST, me: str) -> bool:
    """Returns True for a method's name for its object, and for `super()`."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id == "super"
    return isinstance(node, ast.Name) and node.id == me


def _inside(links: Links) -> Links:
    return frozenset((name, max(far - 1, 0)) for name, far in links)


def _outside(links: Links) -> Links:
    return frozenset((name, min(far + 1, _FAR)) for name, far in links)


def _copied(links: Links) -> Links:
    return frozenset((name, max(far, 1)) for name, far in links)


def _name_of(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _blocks_of(statement: ast.AST) -> Iterator[list[ast.AST]]:
    for name in ("body", "handlers", "cases", "orelse", "finalbody"):
        block = getattr(statement, name, None)
        if isinstance(block, list):
            if name in ("handlers", "cases"):
                yield from (part.body for part in block)
            else:
                yield block


def _headed(statement: ast.AST) -> list[ast.AST]:
    """List the expressions of a statement, outer ones last, without those of its blocks."""
    found: list[ast.AST] = []
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        for part in ast.iter_child_nodes(node):
            if not isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case):
                found.append(part)
                waiting.append(part)
    # A comprehension's own names are bound first, and outer ones before those of inner ones.
    found.sort(key=lambda node: not isinstance(node, ast.comprehension))
    return found
