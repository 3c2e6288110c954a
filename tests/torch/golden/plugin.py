"""
The pytest side: the option, the matrix as parameters, and the two contenders as a fixture.
"""

import multiprocessing

import pytest

from .cases import all_cases, sampled_cases


def pytest_addoption(parser):
    parser.addoption(
        "--golden-all",
        action="store_true",
        help="run every golden case instead of the sampled ones (minutes)",
    )


def pytest_configure(config):
    # A fork server that holds torch already starts a worker in milliseconds, not in seconds.
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch"])


def pytest_generate_tests(metafunc):
    wanted = all_cases if metafunc.config.getoption("--golden-all") else sampled_cases
    for name, in_order in (("ordered_case", True), ("unordered_case", False)):
        if name in metafunc.fixturenames:
            cases = [case for case in wanted() if case.in_order == in_order]
            metafunc.parametrize(name, cases, ids=str)


@pytest.fixture(params=["torch", "ours"])
def loader_class(request):
    """
    Give torch's DataLoader, then ours: what holds for the one must hold for the other.
    """
    # Not at the top: tests that need no loader run while the package cannot be imported.
    from .contenders import LOADERS

    return LOADERS[request.param]
