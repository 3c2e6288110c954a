"""Reads programs in the C dialect of herd7's litmus files, as far as the files here use it."""

from __future__ import annotations

import re
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from .executions import Outcome, Step, Thread, executions

HERE = Path(__file__).resolve().parent
PROGRAMS = sorted(path.stem for path in HERE.glob("*.litmus"))

_ORDER = r"memory_order_(\w+)"
_STORE = re.compile(rf"atomic_store_explicit\((\w+), (.+), {_ORDER}\);$")
_PLAIN_STORE = re.compile(r"\*(\w+) = (.+);$")
_LOAD = re.compile(rf"(?:int )?(\w+) = atomic_load_explicit\((\w+), {_ORDER}\);$")
_PLAIN_LOAD = re.compile(r"(?:int )?(\w+) = \*(\w+);$")
_UPDATE = re.compile(
    rf"(?:int )?(\w+) = atomic_(exchange|fetch_add|fetch_sub)_explicit\((\w+), (.+), {_ORDER}\);$"
)
_COMPARE = re.compile(
    r"(?:int )?(\w+) = atomic_compare_exchange_strong_explicit"
    rf"\((\w+), &(\w+), (.+), {_ORDER}, {_ORDER}\);$"
)
_SET = re.compile(r"(?:int )?(\w+) = ([^*].*);$")
_IF = re.compile(r"if \((.+)\) \{$")

# The two tables in a program's first comment: its outcomes, and mistakes that must be found.
_COLUMNS = re.compile(r"^ +((?:\d+:\w+ *)+)$", re.MULTILINE)
_ROW = re.compile(r"^ +((?:[\d-]+ +)+)(acceptable|forbidden): (.+?)(?: \*\))?$", re.MULTILINE)
_MISTAKE = re.compile(r"^   (.+?) +\| (.+?) +\| (.+?) > (.+?) +\| (.+?)(?: \*\))?$", re.MULTILINE)


class NotUnderstood(ValueError):
    """A line that is none of the few forms that are known here."""


@dataclass(frozen=True)
class Mistake:
    """
    A change to a program that must be found.

    Args:
        line: Text of the one line that it changes.
        fault: How it shows.
    """

    program: str
    name: str
    line: str
    old: str
    new: str
    fault: str

    def plant(self, text: str) -> str:
        """Make the change in a program's text."""
        head, _, body = text.partition("*)")
        (line,) = (line for line in body.splitlines() if self.line in line)
        assert line.count(self.old) == 1, f"{self.old!r} must stand once in {line!r}"
        return head + "*)" + body.replace(line, line.replace(self.old, self.new))


@dataclass(frozen=True, eq=False)
class Row:
    """A row of a program's table: what some registers, such as 1:r0, hold at the end."""

    state: dict[str, int]
    is_forbidden: bool
    says: str

    def fits(self, outcome: Outcome) -> bool:
        """Returns True if an execution ended so."""
        return all(_register(outcome, name) == value for name, value in self.state.items())


def _register(outcome: Outcome, name: str) -> int:
    thread, _, register = name.partition(":")
    return outcome.registers[int(thread)].get(register, 0)


@dataclass(frozen=True)
class Program:
    """A litmus file: the words at the start, the threads, and the table of its outcomes."""

    name: str
    start: dict[str, int]
    threads: list[Thread]
    rows: list[Row]

    def faults(self) -> set[str]:
        """
        Find what is wrong in any execution: data races by word, and outcomes.

        An outcome is forbidden, or in no row; or an acceptable one is never seen.
        """
        found: set[str] = set()
        unseen = {row for row in self.rows if not row.is_forbidden}
        for outcome in executions(self.threads, self.start):
            found |= {f"race for {word}" for word in outcome.races}
            row = next((row for row in self.rows if row.fits(outcome)), None)
            unseen.discard(row)
            if row is None or row.is_forbidden:
                found.add("outcome" if row else "an outcome that is not listed")
        return found | {f"never {row.says}" for row in unseen}


def mistakes(name: str) -> list[Mistake]:
    """List the mistakes of a program."""
    found = _MISTAKE.findall((HERE / f"{name}.litmus").read_text())
    return [Mistake(name, *columns) for columns in found]


def read(name: str, mistake: Mistake | None = None) -> Program:
    """Read a file, with a mistake planted if there is one."""
    text = (HERE / f"{name}.litmus").read_text()
    if mistake:
        text = mistake.plant(text)
    rows = _rows(text)
    text = re.sub(r"\(\*.*?\*\)|//[^\n]*", "", text, flags=re.DOTALL)
    head = re.match(r"C [\w-]+\s*\{(.*?)\}", text, re.DOTALL)
    assert head and rows, f"{name} has no start or no table"
    start = {word: int(value) for word, value in re.findall(r"(\w+) = (-?\d+);", head[1])}
    bodies = re.findall(r"^P\d+ \([^)]*\) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE)
    return Program(name, start, [_thread(body) for body in bodies], rows)


def _rows(text: str) -> list[Row]:
    columns = _COLUMNS.findall(text)
    names = columns[0].split() if columns else []
    return [
        Row(
            {n: int(v) for n, v in zip(names, values.split(), strict=True) if v != "-"},
            kind == "forbidden",
            says,
        )
        for values, kind, says in _ROW.findall(text)
    ]


def _thread(body: str) -> Thread:
    block, rest = _block([line.strip() for line in body.splitlines() if line.strip()])
    assert not rest, f"a block that is not closed: {rest}"

    def run(registers: dict[str, int]) -> Generator[Step, int, None]:
        yield from _run(block, registers)

    return run


def _block(lines: list[str]) -> tuple[list, list[str]]:
    """Nest the lines of a block: an if is (condition, then, otherwise)."""
    block: list = []
    while lines and not lines[0].startswith("}"):
        line, *lines = lines
        condition = _IF.match(line)
        if condition is None:
            block.append(line)
            continue
        then, lines = _block(lines)
        otherwise: list = []
        if lines[0] == "} else {":
            otherwise, lines = _block(lines[1:])
        block.append((condition[1], then, otherwise))
        lines = lines[1:]
    return block, lines


def _value(text: str, registers: dict[str, int]) -> int:
    return int(eval(text.replace("&&", " and ").replace("||", " or "), {}, dict(registers)))


def _run(block: list, registers: dict[str, int]) -> Generator[Step, int, None]:
    for line in block:
        if isinstance(line, tuple):
            condition, then, otherwise = line
            yield from _run(then if _value(condition, registers) else otherwise, registers)
        elif match := _COMPARE.match(line):
            yield from _compare(match, registers)
        else:
            yield from _access(line, registers)


def _access(line: str, registers: dict[str, int]) -> Generator[Step, int, None]:
    if match := _STORE.match(line):
        word, text, order = match.groups()
        value = _value(text, registers)
        yield word, order, False, lambda _: value
    elif match := _PLAIN_STORE.match(line):
        value = _value(match[2], registers)
        yield match[1], "plain", False, lambda _: value
    elif match := _LOAD.match(line):
        registers[match[1]] = yield match[2], match[3], True, lambda _: None
    elif match := _PLAIN_LOAD.match(line):
        registers[match[1]] = yield match[2], "plain", True, lambda _: None
    elif match := _UPDATE.match(line):
        register, kind, word, text, order = match.groups()
        value = _value(text, registers)
        registers[register] = yield word, order, True, lambda old: _updated(kind, old, value)
    elif match := _SET.match(line):
        registers[match[1]] = _value(match[2], registers)
    else:
        raise NotUnderstood(line)


def _updated(kind: str, old: int, value: int) -> int:
    return {"exchange": value, "fetch_add": old + value, "fetch_sub": old - value}[kind]


def _compare(match: re.Match[str], registers: dict[str, int]) -> Generator[Step, int, None]:
    register, word, expected, text, success, failure = match.groups()
    wanted, value = registers[expected], _value(text, registers)
    orders = f"{success}|{failure}"
    found = yield word, orders, True, lambda old: value if old == wanted else None
    registers[register] = int(found == wanted)
    registers[expected] = found
