"""The training in examples/ that may be stopped: its steps are those of one that never was."""

from __future__ import annotations

import random
import signal
from pathlib import Path

import pytest

from tests.helpers.programs import Program, send
from tests.helpers.stage import LIBRARIES, Stage, play_file

from .shims import EXAMPLES

STOPS = 20
CODE = 85  # HTCondor's
EXAMPLE = str(EXAMPLES / "preempted.py")
ARGUMENTS = ["checkpoint.pt", "--code", str(CODE)]
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
SINGLE = f"""
import runpy, sys
sys.argv[1:] = {ARGUMENTS}
runpy.run_path({EXAMPLE!r}, run_name="__main__")
"""
# What torchrun calls, with ranks that have imported everything.
FORKED = f"""
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

def train():
    {SINGLE.strip().replace(chr(10), chr(10) + "    ")}

endpoint = {{"rdzv_backend": "c10d", "rdzv_endpoint": "127.0.0.1:0", "local_addr": "127.0.0.1"}}
elastic_launch(LaunchConfig(1, 1, 2, max_restarts=0, start_method="fork", **endpoint), train)()
"""
TORCHRUN = f"""
from torch.distributed.run import main
options = ["--nproc-per-node=2", "--standalone", "--local-addr=127.0.0.1", "--max-restarts=0"]
main([*options, {EXAMPLE!r}, *{ARGUMENTS}])
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    """A process that has imported what takes long."""
    with Stage(
        tmp_path_factory.mktemp("stage"), f"{LIBRARIES}, torch._dynamo, torch.distributed.run"
    ) as stage:
        yield stage


def outcome(open_program, signals=()):
    """
    Run a program to its end, after it was stopped by each of some signals.

    Returns:
        The lines of all steps, and the statuses with which it has ended.
    """
    lines, statuses = [], []
    for number in (*signals, None):
        with open_program() as program:
            if number is not None:
                lines += [program.line() for _ in range(random.randint(1, 5))]
                program.send_to_all(number)
            statuses.append(program.wait())
            lines += program.lines()
    return lines, statuses


@pytest.mark.timeout(240)
def test_a_training_that_is_stopped_twenty_times(stage, tmp_path):
    """It has every loss of one that was not stopped, and each time exits with the code."""
    expected, _ = outcome(lambda: play_file(stage, tmp_path, SINGLE))
    signals = random.choices([signal.SIGTERM, signal.SIGUSR1], k=STOPS)
    lines, statuses = outcome(lambda: play_file(stage, tmp_path, SINGLE), signals)

    assert 300 == len(expected)
    assert expected == lines
    assert [CODE] * STOPS + [0] == statuses


class Torchrun(Program):
    """torchrun, whose ranks are leaders of sessions of their own."""

    def __init__(self, folder):
        super().__init__(folder, TORCHRUN, **LOOPBACK)

    def __exit__(self, *_):
        for task in Path("/proc", str(self.pid), "task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                send(child, signal.SIGKILL)
        super().__exit__(*_)


@pytest.mark.timeout(480)
@pytest.mark.parametrize(("launcher", "stops"), [("forks", STOPS), ("torchrun", 2)])
def test_two_ranks_that_are_stopped(stage, tmp_path, launcher, stops):
    """All processes of the job get SIGTERM, torchrun's twice; ranks stop after the same step."""

    def start():
        is_forked = launcher == "forks"
        return play_file(stage, tmp_path, FORKED, **LOOPBACK) if is_forked else Torchrun(tmp_path)

    expected, _ = outcome(start)
    lines, statuses = outcome(start, [signal.SIGTERM] * stops)

    assert 300 == len(expected)
    assert sorted(expected) == sorted(lines)
    assert [False] * stops + [True] == [status == 0 for status in statuses]
