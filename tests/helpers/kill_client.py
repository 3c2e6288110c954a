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
        command: What Python is to run.
        library: Where the package is.
        environment: Variables on top of this process's own.
    """

    answers_within_s = 120.0  # it ends what hangs long before

    def __init__(self, *command, library=BUILD / "lib", cwd=None, **environment):
        path = f"{library}{os.pathsep}{ROOT}"
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=cwd,
            env={**os.environ, **environment, "PYTHONPATH": path},
        )

    def begin(self, case):
        """Have it run a case."""
        self._process.stdin.write(json.dumps(case).encode() + b"\n")
        self._process.stdin.flush()

    def outcome(self):
        """Wait for the outcome of the case that was begun first."""
        ready, _, _ = select.select([self], [], [], self.answers_within_s)
        line = self._process.stdout.readline() if ready else b""
        assert line, "the program does not answer"
        return json.loads(line)

    def ask(self, case):
        """Have it run a case; return the outcome."""
        self.begin(case)
        return self.outcome()

    def fileno(self):
        """What is readable when there is an outcome."""
        return self._process.stdout.fileno()

    def close(self):
        """End it, and all that it has started."""
        self._process.stdin.close()
        self._process.wait(self.answers_within_s)
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
        super().__init__(ROOT / "tests" / "helpers" / "kill_driver.py", folder / "steps")
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
