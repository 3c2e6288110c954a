"""
Which tests a run takes: the core of every kind, what the core leaves out, or all.

A test is in the core unless it is marked. `thorough` leaves it out. `core(values=1)` keeps, of a
function's cases, a few in which each value of each parameter occurs; `core(every=4)` each fourth
case; `core(first=1)` the first.

`frameworks/` needs an installation of its own, so it is taken only by a run that names it.

The choice depends on nothing but the cases, so the core and the rest are all tests, each once, even
when they run on different days and machines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

CORE, REST, ALL = "core", "rest", "all"
FRAMEWORKS = Path(__file__).resolve().parents[1] / "frameworks"


def pytest_addoption(parser: pytest.Parser) -> None:
    for name, what in ((REST, "the tests that the core leaves out"), (ALL, "every test")):
        parser.addoption(
            f"--{name}",
            action="store_const",
            const=name,
            dest="selection",
            default=CORE,
            help=f"run {what}, not the core of every kind",
        )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: not in the core, so that only --rest runs it")
    config.addinivalue_line("markers", "core(values, every, first): cases in the core")


def pytest_report_header(config: pytest.Config) -> str:
    return f"tests: {selection(config)} (--rest: what the core leaves out, --all: every test)"


def selection(config: pytest.Config) -> str:
    """Returns the selection that the options ask for; tests that are named one by one all run."""
    named = any("::" in argument for argument in config.args)
    return ALL if named and config.option.selection == CORE else config.option.selection


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Returns True for the frameworks' folder, unless an argument names it or a file in it."""
    if collection_path != FRAMEWORKS:
        return None
    named = (Path(argument.partition("::")[0]).resolve() for argument in config.args)
    return None if any(FRAMEWORKS in (path, *path.parents) for path in named) else True


@pytest.hookimpl(tryfirst=True)  # before -k and -m: they must not change what is in the core
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = selection(config)
    if wanted == ALL:
        return
    core = core_of(items)
    left_out = [item for item in items if (item in core) != (wanted == CORE)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if (item in core) == (wanted == CORE)]


def core_of(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """Returns the tests that are in the core."""
    functions = defaultdict(list)
    for item in items:
        functions[item.nodeid.partition("[")[0]].append(item)
    return {item for cases in functions.values() for item in core_cases(cases)}


def core_cases(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Returns those of one function's cases that are in the core."""
    cases = [case for case in cases if case.get_closest_marker("thorough") is None]
    marker = cases[0].get_closest_marker("core") if cases else None
    if marker is None:
        return cases
    if "values" in marker.kwargs:
        return covering(cases)
    if "first" in marker.kwargs:
        return cases[: marker.kwargs["first"]]
    return cases[:: marker.kwargs["every"]]


def covering(cases: Sequence[pytest.Item]) -> list[pytest.Item]:
    """
    Returns a few cases in which each value of each parameter occurs, as told by its identity.

    The cases share the objects of the decorators' lists; pytest's own numbers differ from case to
    case where decorators are stacked.
    """
    values = {
        case: {(name, id(value)) for name, value in case.callspec.params.items()}  # type: ignore[attr-defined]
        for case in cases
    }
    missing = set().union(*values.values())
    chosen = []
    while missing:
        best = max(cases, key=lambda case: len(values[case] & missing))
        missing -= values[best]
        chosen.append(best)
    return chosen
