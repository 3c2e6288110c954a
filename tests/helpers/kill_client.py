"""The tests' end of the program that runs workloads: the build with kill points, and its driver."""

import json
import os
import select
import subprocess
import sys

from tests.helpers.kill_steps import ROOT
from tests.helpers.programs import one_at_a_time

# A build of its own for each setting of the other switches.
SWITCHES = {name: os.environ.get(f"SHMLOADER_{name}") for name in ("SANITIZE", "DEBUG", "PORTABLE")}
VARIANT = "".join(f"-{name}-{value}".lower() for name, value in SWITCHES.items() if value)
BUILD = ROOT / "build" / f"kill-points{VARIANT}"
BUILD_TIMEOUT_S = 300
ANSWER_WITHIN_S = 120.0  # of the driver, which ends what hangs long before

HEALED = {"restarts": 10}

# In the order in which they are preferred for a step that several of them pass. In "mortal" a
# worker dies in any case, so it is for healing alone; "spared" is the same without that death.
WORKLOADS = ("kept", "growing", "persistent", "abandoned", "large", "cached")
WORKLOADS_TO_HEAL = (*WORKLOADS, "mortal")
TWIN = {"mortal": "spared"}


def build():
    """
    Build the package with its kill points, if its last build is older than a source.

    Without optimisation, which takes a third of the time, and with assertions.
    """
    command = [sys.executable, "setup.py", "--quiet", "build"]
    command += [f"--build-{kind}={BUILD / kind}" for kind in ("lib", "temp")]
    with one_at_a_time(BUILD):
        result = subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "SHMLOADER_KILL_POINTS": "1", "SHMLOADER_ASSERT": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BUILD_TIMEOUT_S,
        )
    assert result.returncode == 0, result.stdout


class Program:
    """
    A program under that build: each line of its input is a case, each of its output the outcome.

    Args:
        name: Of its file, in this folder.
    """

    def __init__(self, name, *arguments):
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "tests" / "helpers" / name, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{BUILD / 'lib'}{os.pathsep}{ROOT}"},
        )

    def ask(self, case):
        """Have it run a case; return the outcome."""
        self._process.stdin.write(json.dumps(case).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_WITHIN_S)
        line = self._process.stdout.readline() if ready else b""
        assert line, f"the program does not answer {case}"
        return json.loads(line)

    def close(self):
        """End it, and all that it has started."""
        self._process.stdin.close()
        self._process.wait(ANSWER_WITHIN_S)
        self._process.stdout.close()


class Driver(Program):
    """
    The program that runs workloads, and their outcomes without deaths.

    Attributes:
        digests: By workload, the hashes of its batches.
        undisturbed: By workload, the outcome without healing; undisturbed_healed: with it.
        told_after_s: How long it took until each death was reported; printed at the end.
    """

    def __init__(self, folder):
        super().__init__("kill_driver.py", folder / "steps")
        self.told_after_s = []
        self.undisturbed = {name: self.run(name) for name in WORKLOADS}
        self.undisturbed_healed = {name: self.run(name, **HEALED) for name in WORKLOADS_TO_HEAL}
        twins = {name: self.run(twin) for name, twin in TWIN.items()}
        self.digests = {
            name: outcome["digests"] for name, outcome in {**self.undisturbed, **twins}.items()
        }

    def run(self, workload, death=None, **options):
        """Run a workload with a death in it and options for its loader; return the outcome."""
        return self.ask({"workload": workload, "death": death or {}, "options": options})

    def passages(self, workload, heals=False):
        """Count how often a workload passes each step: {(step, side): count}."""
        outcome = (self.undisturbed_healed if heals else self.undisturbed)[workload]
        return {(step, side): count for step, side, count in outcome["passages"]}

    def workload_for(self, step, side, heals=False):
        """Choose the workload whose process must die at a step."""
        for workload in WORKLOADS_TO_HEAL if heals else WORKLOADS:
            if (step, side) in self.passages(workload, heals):
                return workload
        raise AssertionError(f"no workload passes {step!r} in a {side}: see kill_workloads.py")
