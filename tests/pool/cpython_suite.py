"""
CPython's own tests of `ProcessPoolExecutor`, run with `shmloader.Pool` in its place.

    python -m tests.pool.cpython_suite

They are in the library of Python 3.12 and later. What is known to differ is listed here with the
reason; the exit code is 0 if nothing else does.
"""

import concurrent.futures
import concurrent.futures.process
import importlib
import multiprocessing.util
import sys
import unittest

MODULES = ("as_completed", "deadlock", "future", "init", "process_pool", "shutdown", "wait")
METHODS = ("Fork", "Forkserver", "Spawn")

# By the name of a test: why it differs. It reads a private attribute of the executor, if that is
# all that is said.
_PRIVATE = {
    "test_killed_child": "_processes",
    "test_saturation": "_processes",
    "test_idle_process_reuse_one": "_processes: all workers are started at once",
    "test_idle_process_reuse_multiple": "_processes: all workers are started at once",
    "test_max_tasks_per_child": "_processes",
    "test_max_tasks_per_child_defaults_to_spawn_context": "_mp_context: it is forkserver here",
    "test_processes_terminate": "_processes",
    "test_context_manager_shutdown": "_processes",
    "test_del_shutdown": "_executor_manager_thread",
    "test_shutdown_no_wait": "_executor_manager_thread",
    "test_python_finalization_error": "its own threads are refused, which are not ours",
    "test_gh105829_should_not_deadlock_if_wakeup_pipe_full": "_executor_manager_thread",
}


def suite() -> unittest.TestSuite:
    """Load the tests that concern process pools."""
    loader, found = unittest.TestLoader(), unittest.TestSuite()
    for name in MODULES:
        module = importlib.import_module(f"test.test_concurrent_futures.test_{name}")
        for each in _flat(loader.loadTestsFromModule(module)):
            if any(f"ProcessPool{method}" in type(each).__name__ for method in METHODS):
                found.addTest(each)
    return found


def _flat(tests):
    for each in tests:
        if isinstance(each, unittest.TestSuite):
            yield from _flat(each)
        else:
            yield each


class Result(unittest.TextTestResult):
    """Notes which tests passed."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, **named)
        self.passed = []

    def addSuccess(self, test):  # unittest's name
        """Note a test that passed."""
        super().addSuccess(test)
        self.passed.append(test)


def main() -> int:
    """Run them, and compare what differs with the list."""
    from shmloader import Pool

    concurrent.futures.ProcessPoolExecutor = Pool
    concurrent.futures.process.ProcessPoolExecutor = Pool
    # Between two modules it runs the finalizers of the interpreter's end, which has not come.
    multiprocessing.util._cleanup_tests = lambda: None
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite())
    failed = {each._testMethodName for each, _ in [*result.failures, *result.errors]}
    unlisted, listed = failed - _PRIVATE.keys(), failed & _PRIVATE.keys()
    print(
        f"{len(result.passed)} passed, {len(result.skipped)} skipped, "
        f"{len(result.failures) + len(result.errors)} differ: {len(listed)} tests are listed"
    )
    for name in sorted(unlisted):
        print(f"not listed: {name}")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
