"""Opens a source of each kind, and what it must be like."""

import pytest

from tests.conformance.kinds import KINDS
from tests.conformance.made import number
from tests.conformance.sources import get


def pytest_generate_tests(metafunc):
    """Have a test with a parameter `kind` for each kind, but those that differ for it."""
    if "kind" in metafunc.fixturenames:
        case = metafunc.function.__name__.removeprefix("test_")
        kinds = [
            pytest.param(kind, id=kind.name, marks=[pytest.mark.thorough] if kind.is_slow else [])
            for kind in KINDS
            if case not in kind.differs
        ]
        metafunc.parametrize("kind", kinds, scope="module", indirect=True)


def pytest_collection_modifyitems(config, items):
    """Run one value of each case that opens a source of its own for a kind that is slow to start.

    How its worker was started changes neither errors nor signals; forked kinds run every value.
    """
    seen, left_out = set(), []
    for item in items:
        kind = getattr(item, "callspec", None) and item.callspec.params.get("kind")
        if kind in KINDS and kind.is_slow and "fresh" in item.fixturenames:
            case = item.function, kind.name
            if case in seen:
                left_out.append(item)
            seen.add(case)
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(scope="module")
def kind(request):
    """The kind of this case."""
    return request.param


@pytest.fixture(scope="module")
def source(kind):
    """A source of the kind that the cases of a file share, and must leave in order."""
    source = kind.open()
    assert 0 == get(source, number)  # it has started its processes
    yield source
    source.close()


@pytest.fixture(scope="module")
def standard(kind):
    """What the source must be like."""
    standard = kind.standard()
    assert 0 == get(standard, number)
    yield standard
    standard.close()


@pytest.fixture
def fresh(kind):
    """A source of the kind for one case, which may break it."""
    source = kind.open()
    yield source
    source.close()
