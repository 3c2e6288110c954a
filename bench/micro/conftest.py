"""What the microbenchmarks share: a segment's ends, native functions, the table of figures."""

from collections.abc import Callable

import pytest

from bench import native as library
from bench.micro.ends import Ends

FIGURES = pytest.StashKey[list[tuple[str, str]]]()

Figure = Callable[[str, Callable[[float], float]], None]


def pytest_configure(config: pytest.Config) -> None:
    config.stash[FIGURES] = []


def pytest_terminal_summary(terminalreporter, config: pytest.Config) -> None:
    figures = config.stash[FIGURES]
    if not figures:
        return
    width = max(len(name) for name, _ in figures)
    terminalreporter.section("what the medians mean")
    for name, text in figures:
        terminalreporter.write_line(f"{name:<{width}}  {text}")


@pytest.fixture
def figure(request: pytest.FixtureRequest, benchmark) -> Figure:
    """Note a benchmark's median, which is in seconds, in a unit that is easier to read."""

    def note(unit: str, of_median: Callable[[float], float]) -> None:
        if benchmark.stats is None:  # --benchmark-disable
            return
        value = of_median(benchmark.stats.stats.median)
        benchmark.extra_info[unit] = value
        request.config.stash[FIGURES].append((request.node.name, f"{value:10.1f} {unit}"))

    return note


@pytest.fixture(scope="session")
def native(tmp_path_factory: pytest.TempPathFactory):
    """The functions of bench/native and of csrc/copy.c."""
    return library.load(tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def ends() -> Ends:
    """One segment for all benchmarks: its pages are touched once."""
    return Ends()
