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

from test.support.script_helper import assert_python_ok

from shmloader import Pool

MODULES = ("as_completed", "deadlock", "future", "init", "process_pool", "shutdown", "wait")
METHODS = ("Fork", "Forkserver", "Spawn")

# By the name of a test: why it differs.
_LISTED = {
    "test_idle_process_reuse_one": "all workers are started at once",
    "test_idle_process_reuse_multiple": "all workers are started at once",
    "test_processes_terminate": "all workers are started at once",
    "test_max_tasks_per_child": "works with fork, too",
    "test_max_tasks_per_child_defaults_to_spawn_context": "it is forkserver here",
    "test_del_shutdown": "reads _executor_manager_thread",
    "test_shutdown_no_wait": "reads _executor_manager_thread",
    "test_shutdown_deadlock_pickle": "reads _executor_manager_thread",
    "test_gh105829_should_not_deadlock_if_wakeup_pipe_full": "replaces _executor_manager_thread",
    "test_python_finalization_error": "its own threads are refused, which are not ours",
    "test_error_at_task_unpickle": "that call fails alone",
    "test_exit_at_task_unpickle": "that call fails alone",
    "test_error_during_result_unpickle_in_result_handler": "that call fails alone",
    "test_map_timeout": "workers of spawn import torch for longer than it waits",
    "test_first_exception": "workers of spawn import torch for longer than it waits",
    "test_exit_during_result_pickle_on_worker": "the worker exits",
    "test_exit_during_result_unpickle_in_result_handler": "RuntimeError, and then it is broken",
    "test_error_during_result_pickle_on_worker": "UnsendableBatch, which names the object",
}
_REPLACED = """\
import concurrent.futures.process, shmloader
concurrent.futures.ProcessPoolExecutor = concurrent.futures.process.ProcessPoolExecutor = \
    shmloader.Pool
"""


class ProcessPoolExecutor(Pool):
    """A pool with what those tests read of the class that it takes the place of."""

    @property
    def _processes(self):
        crew = self._engine.crew
        return {} if crew is None else {each.pid: each for each in crew.processes.by_id}

    @property
    def _max_workers(self):
        return self._engine._wanted.max_workers

    @property
    def _broken(self):
        return self._engine.broken


def suite() -> unittest.TestSuite:
    """Load the tests that concern process pools."""
    loader, found = unittest.TestLoader(), unittest.TestSuite()
    for name in MODULES:
        module = importlib.import_module(f"test.test_concurrent_futures.test_{name}")
        if name == "shutdown":  # it runs programs
            module.assert_python_ok = lambda *given: assert_python_ok("-c", _REPLACED + given[-1])
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
    concurrent.futures.ProcessPoolExecutor = ProcessPoolExecutor
    concurrent.futures.process.ProcessPoolExecutor = ProcessPoolExecutor
    # Between two modules it runs the finalizers of the interpreter's end, which has not come.
    multiprocessing.util._cleanup_tests = lambda: None
    result = unittest.TextTestRunner(resultclass=Result, verbosity=2).run(suite())
    failed = {each._testMethodName for each, _ in [*result.failures, *result.errors]}
    unlisted, listed = failed - _LISTED.keys(), failed & _LISTED.keys()
    print(
        f"{len(result.passed)} passed, {len(result.skipped)} skipped, "
        f"{len(result.failures) + len(result.errors)} differ: {len(listed)} tests are listed"
    )
    for name in sorted(unlisted):
        print(f"not listed: {name}")
    return 1 if unlisted else 0


if __name__ == "__main__":
    sys.exit(main())
