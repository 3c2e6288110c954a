"""The pytest side: the matrix as parameters, and the two contenders as a fixture."""

import multiprocessing

import pytest

from .cases import all_cases


def pytest_configure(config):
    # A fork server that holds torch already starts a worker in milliseconds, not in seconds.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch"])


def pytest_generate_tests(metafunc):
    for name, in_order in (("ordered_case", True), ("unordered_case", False)):
        if name in metafunc.fixturenames:
            cases = [case for case in all_cases() if case.in_order == in_order]
            metafunc.parametrize(name, cases, ids=str)


@pytest.fixture(params=["torch", "ours"])
def loader_class(request):
    """Give torch's DataLoader, then ours: what holds for the one must hold for the other."""
    # Not at the top: tests that need no loader run while the package cannot be imported.
    from .outcomes import LOADERS

    return LOADERS[request.param]


@pytest.fixture
def build(loader_class):
    """Give a function that makes a loader over eight numbers, in four batches, from two workers."""
    from .privates import IN_TWO_WORKERS

    def make(*, of=loader_class, dataset=range(8), **options):
        return of(dataset, **{**IN_TWO_WORKERS, **options})

    return make
