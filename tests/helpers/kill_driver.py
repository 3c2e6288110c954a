"""
Runs workloads with a death in them, each in a process of its own, forked from this one.

A program, because importing torch takes longer than a workload: `python kill_driver.py STEPS_FILE`
under the test build. Each line of its input is a case as JSON, each line of its output the outcome.
"""

import faulthandler
import gc
import json
import os
import select
import signal
import sys
import time
import traceback
import warnings
from multiprocessing import resource_tracker

import torch

from tests.helpers.kill_steps import VARIABLE, Steps, names
from tests.helpers.programs import GONE_WITHIN_S, members, send, wait_until

HANGS_AFTER_S = 60.0  # a hundred times what a case takes, spawned workers apart
TOLD_WITHIN_S = 5.0  # a later error counts as none


class Untold(AssertionError):
    """A worker died and the trainer was not told."""


class Case:
    """
    One run of a workload.

    Args:
        steps: The counters that all processes share.
        wanted: The case: `workload` by name, `options` for its loader, and `death`, the arguments
            for Steps.arm().
    """

    def __init__(self, steps, wanted, workloads):
        self.steps = steps
        self.workload = workloads[wanted["workload"]]
        self.options = wanted.get("options", {})
        self.death = wanted.get("death", {})
        self.heals = self.options.get("restarts", 0) > 0
        self.outcome = {"digests": [], "again": [], "warnings": []}

    def run(self, result):
        """Be the trainer; write the outcome to a descriptor."""
        os.setsid()
        faulthandler.register(signal.SIGUSR1, all_threads=True, chain=False)
        self.steps.arm(os.getpid(), **self.death)
        try:
            self._run()
        except BaseException:
            self.outcome["failure"] = traceback.format_exc()
        self.outcome["died"] = self.steps.died
        self.outcome["passages"] = [[*key, n] for key, n in self.steps.passages().items()]
        os.write(result, json.dumps(self.outcome).encode())

    def _run(self):
        self.workload.begin()
        descriptors = len(os.listdir("/proc/self/fd"))
        loader = self.workload.loader(**self.options)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self._iterate(loader)
            self.outcome["restarts"] = loader.stats().restarts
            self._note_rest(descriptors)
            if not self.heals:
                # The same loader serves whole epochs now.
                self.steps.disarm()
                self.workload.run(loader, self.outcome["again"], lambda: None)
                loader.close()
        self.outcome["warnings"] = [
            f"{warning.category.__name__}: {warning.message}" for warning in caught
        ]

    def _iterate(self, loader):
        hear = (lambda: None) if self.heals else self._hear
        held = None
        try:
            held = self.workload.run(loader, self.outcome["digests"], hear)
        except RuntimeError as error:
            self._note(error.with_traceback(None))
        loader.close()
        del held  # each batch gives its own slot's pages back

    def _hear(self):
        """Wait for the error of a death that has happened, and give up after a limit."""
        deadline = time.monotonic() + TOLD_WITHIN_S
        while self.steps.died and time.monotonic() < deadline:
            time.sleep(0.01)
        if self.steps.died:
            raise Untold(f"a worker died {TOLD_WITHIN_S} s ago")

    def _note(self, error):
        now_ns = time.monotonic_ns()
        self.outcome["error"] = f"{type(error).__name__}: {error}"
        self.outcome["cause"] = f"{type(error.__cause__).__name__}: {error.__cause__}"
        self.outcome["told_after_s"] = (now_ns - self.steps.died_ns) / 1e9

    def _note_rest(self, descriptors):
        gc.collect()
        resource_tracker._resource_tracker._stop()  # multiprocessing's own, under spawn
        me = os.getpid()
        wait_until(lambda: members(me) <= {me}, GONE_WITHIN_S)
        self.outcome["left"] = len(members(me)) - 1
        self.outcome["descriptors"] = len(os.listdir("/proc/self/fd")) - descriptors


class Fork:
    """A process that runs a case, as the driver sees it."""

    def __init__(self, case):
        self.errors = open(os.memfd_create("errors"), "w+b")  # noqa: SIM115  closed when read
        self.result, result = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self.result)
            os.dup2(self.errors.fileno(), 2)
            try:
                case.run(result)
            finally:
                os._exit(0)
        os.close(result)

    def outcome(self):
        """Wait for its end, note which of its processes are left, and kill these."""
        hung = not self._wait()
        if hung:
            self._show_stacks()
        ended_ns = time.monotonic_ns()
        send(self.pid, signal.SIGKILL)
        _, status = os.waitpid(self.pid, 0)
        wait_until(lambda: not members(self.pid), GONE_WITHIN_S)
        gone_after_s = (time.monotonic_ns() - ended_ns) / 1e9
        left = members(self.pid)
        for pid in left:
            send(pid, signal.SIGKILL)
        return {
            "left_at_end": len(left),
            "gone_after_s": gone_after_s,
            "status": os.waitstatus_to_exitcode(status),
            "hung": hung,
            **self._read(),
        }

    def _wait(self):
        descriptor = os.pidfd_open(self.pid)
        try:
            return bool(select.select([descriptor], [], [], HANGS_AFTER_S)[0])
        finally:
            os.close(descriptor)

    def _show_stacks(self):
        for pid in members(self.pid):
            send(pid, signal.SIGUSR1)
        time.sleep(0.5)

    def _read(self):
        # Without waiting for EOF: a worker that lives on holds the other end of the pipe.
        os.set_blocking(self.result, False)
        try:
            text = os.read(self.result, 1 << 16)
        except BlockingIOError:
            text = b""
        os.close(self.result)
        self.errors.seek(0)
        errors = self.errors.read().decode(errors="replace")
        self.errors.close()
        return {"errors": errors, **(json.loads(text) if text else {})}


def serve(steps, workloads):
    """Answer cases until the input ends."""
    for line in sys.stdin:
        outcome = Fork(Case(steps, json.loads(line), workloads)).outcome()
        print(json.dumps(outcome), flush=True)


def main():
    """Write the file of steps, then load the code that maps it."""
    path = sys.argv[1]
    steps = Steps(path, names())
    os.environ[VARIABLE] = path
    from tests.helpers.kill_workloads import WORKLOADS

    torch.set_num_threads(1)
    # What torch imports at the first batch takes longer than a case, and swallows its errors.
    with torch.autograd.profiler.record_function("first"):
        pass
    gc.freeze()  # the collector skips what is loaded here in the process of each case
    serve(steps, WORKLOADS)


if __name__ == "__main__":
    main()
