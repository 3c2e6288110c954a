"""
Death at any instruction: a process is killed at each step of the protocol, on either side.

The steps are the STEPs of the sources, in a build of its own (tests/kill_steps.py); the epochs that
pass them are in tests/kill_workloads.py, and tests/kill_driver.py runs one in each process.
"""

import importlib.util
import json
import os
import random
import re
import select
import statistics
import subprocess
import sys
import time

import pytest

from kill_steps import ROOT, SIDES, TRAINER, WORKER, names, sources

BUILD = ROOT / "build" / "kill-points"
BUILD_TIMEOUT_S = 300
ANSWER_WITHIN_S = 120.0  # of the driver, which ends what hangs long before
SPAWN_FROM_S = 10
TELL_WITHIN_S = 2.0  # ten times what is promised: other programs use this machine, too

# Who passes the steps whose name begins with a word.
WORDS_OF = {
    SIDES: "arm copy disarm park pop push reserve ring",
    (WORKER,): "ask clock commit gather nothing pages populate sit snapshot stream take write",
    (TRAINER,): "collect free grant lease map order receive reclaim refuse release reopen resume "
    "retake stop unmap unseen",
}
SIDES_OF = {word: sides for sides, words in WORDS_OF.items() for word in words.split()}

STEPS = names()
STEPS_OF = {
    side: [step for step in STEPS if side in SIDES_OF.get(step.split(":")[0], ())] for side in SIDES
}

# What only a worker writes that can be replaced.
STEPS_UNHEALED = [step for step in STEPS_OF[WORKER] if not step.startswith("snapshot:")]

# In the order in which they are preferred for a step that several of them pass. In "mortal" a
# worker dies in any case, so it is for healing alone; "spared" is the same without that death.
WORKLOADS = ("kept", "growing", "persistent", "abandoned", "large")
WORKLOADS_TO_HEAL = (*WORKLOADS, "mortal")
TWIN = {"mortal": "spared"}

# Passages that a workload has and no step's first one is: between two pieces of pages, and in the
# trainer while it puts another worker into the place of one that died.
LATER = [
    ("large", step, passage)
    for step in ("pages: piece counted", "reserve: begun", "populate: begun")
    for passage in (2, 3)
]
WHILE_HEALING = [
    ("reclaim: slots freed", 1),
    ("unseen: begun", 1),
    ("unseen: punched", 1),
    # The two workers' rings were opened before.
    ("reopen: begun", 3),
    ("reopen: write_pos", 5),
    ("reopen: read_pos", 5),
    ("reopen: write_pos", 6),
    ("reopen: read_pos", 6),
]

HEALED = {"restarts": 10}

RESTART_WARNING = re.compile(
    r"RestartWarning: DataLoader worker \d \(pid \d+\) was killed by SIGKILL with .* in hand; "
    r"another takes its place, and no batch changes \(restart \d+ of 10 in this epoch\)"
)
TORCHS_ERROR = re.compile(
    r"RuntimeError: DataLoader worker \(pid(\(s\) \d+\) exited unexpectedly"
    r"| \d+\) is killed by signal: Killed\. )"
)

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("Cython") is None, reason="Cython is missing"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 120),  # the first test builds
]


class Driver:
    """
    The program that runs workloads, and what it found out about them undisturbed.
    """

    def __init__(self, folder):
        environment = {**os.environ, "PYTHONPATH": str(BUILD / "lib")}
        self._process = subprocess.Popen(
            [sys.executable, ROOT / "tests" / "kill_driver.py", folder / "steps"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self.told_after_s = []
        self.digests = {}
        self.passages = {workload: self._learn(workload) for workload in WORKLOADS}
        self.passages_healed = {
            workload: self._learn(workload, **HEALED) for workload in WORKLOADS_TO_HEAL
        }

    def _learn(self, workload, **options):
        outcome = self.run(workload, **options)
        twin = self.run(TWIN[workload]) if workload in TWIN else outcome
        self.digests.setdefault(workload, twin["digests"])
        assert_whole(self, workload, outcome)
        return {(step, side): count for step, side, count in outcome["passages"]}

    def run(self, workload, death=None, **options):
        """
        Run a workload with a death in it and options for its loader; return the outcome.
        """
        case = {"workload": workload, "death": death or {}, "options": options}
        self._process.stdin.write(json.dumps(case).encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_WITHIN_S)
        line = self._process.stdout.readline() if ready else b""
        assert line, f"the driver does not answer {case}"
        return json.loads(line)

    def workload_for(self, step, side, heals=False):
        """
        Choose the workload whose process shall die at a step.
        """
        for workload, passages in (self.passages_healed if heals else self.passages).items():
            if (step, side) in passages:
                return workload
        pytest.fail(f"no workload passes {step!r} in a {side}: extend tests/kill_workloads.py")

    def close(self):
        """
        End the program and all that it has started.
        """
        self._process.stdin.close()
        self._process.wait(ANSWER_WITHIN_S)
        self._process.stdout.close()


@pytest.fixture(scope="module")
def driver(request, tmp_path_factory):
    """
    Build what can be killed, and start the program that runs it.
    """
    build()
    driver = Driver(tmp_path_factory.mktemp("steps"))
    yield driver
    driver.close()
    if driver.told_after_s:
        request.config.get_terminal_writer().line(
            f"\n{len(STEPS)} steps; {len(driver.told_after_s)} deaths of workers were told after "
            f"{1e3 * statistics.median(driver.told_after_s):.0f} ms (median), "
            f"{1e3 * max(driver.told_after_s):.0f} ms (longest)"
        )


def build():
    """
    Build the package with its kill points, where its last build is older than a source.
    """
    command = [sys.executable, "setup.py", "--quiet", "build"]
    command += [f"--build-{kind}={BUILD / kind}" for kind in ("lib", "temp")]
    result = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "SHMLOADER_KILL_POINTS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=BUILD_TIMEOUT_S,
    )
    assert result.returncode == 0, result.stdout


# The steps themselves


def test_steps_have_one_place_each():
    """A step's name stands once in the sources, and begins with a word that tells its sides."""
    assert sorted(set(STEPS)) == sorted(STEPS)
    assert {step.split(":")[0] for step in STEPS} == SIDES_OF.keys()


# Stores to the segment; all other atomics and fields are private memory of one process.
STORE = re.compile(
    r"(atomic_(store|fetch)\w+\(&(ring|end->ring|bell|order|control)->\w+"
    r"|^\s*(order->|(header\.)?answer\.|block\.)\w+ =(?!=)"
    r"|->cells\[[^]]*\] =(?!=)"
    r"|^\s*clock_one\(&"
    r"|^\s*start\[i\] =(?!=))",
)


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_stores_stand_between_steps(path):
    """After each store to the segment there is a step, before the next one and in two lines."""
    lines = path.read_text().splitlines()
    stores = [number for number, line in enumerate(lines) if STORE.search(line)]
    bare = [
        f"{path.name}:{number + 1}: {lines[number].strip()}"
        for number in stores
        if not re.search(r"\bSTEP", "\n".join(lines[number : number + 4]))
    ]

    assert [] == bare


def test_workloads_pass_every_step(driver):
    """Every step is passed on its sides and on no other, so that each of them can be tested."""
    runs = [*driver.passages.values(), *driver.passages_healed.values()]
    passed = {key for passages in runs for key in passages}

    assert {(step, side) for side in SIDES for step in STEPS_OF[side]} == passed


# A worker's death


def die(driver, workload, step, side=WORKER, passage=1, deaths=1, **options):
    """
    Run a workload until its process has died at that step, which not every run passes.

    Returns:
        The outcome, without the counts of passages.
    """
    death = {"step": step, "side": side, "passage": passage, "deaths": deaths}
    for _ in range(3):
        outcome = driver.run(workload, death, **options)
        outcome.pop("passages", None)
        if outcome.get("died", 1):
            return outcome
    pytest.fail(f"nobody has passed {step!r} {passage} times in {workload!r}: {outcome}")


def assert_told(driver, workload, outcome):
    """
    Check that what a worker's death leaves is torch's error, the batches before it, and order.
    """
    delivered = driver.digests[workload][: len(outcome["digests"])]
    assert_whole(driver, workload, outcome)
    assert delivered == outcome["digests"], outcome
    if "error" in outcome:
        assert TORCHS_ERROR.fullmatch(outcome["error"]), outcome
        assert outcome["told_after_s"] < TELL_WITHIN_S, outcome
        driver.told_after_s.append(outcome["told_after_s"])
    else:
        # All batches were there before it died: the driver waits for the error otherwise.
        assert driver.digests[workload] == delivered, outcome


def assert_whole(driver, workload, outcome):
    """
    Check that nothing hung, was printed or left, and that the loader then served whole epochs.
    """
    assert not outcome["hung"], outcome["errors"]
    assert "failure" not in outcome, outcome["failure"]
    assert "" == outcome["errors"]
    assert 0 == outcome["status"], outcome
    assert (0, 0) == (outcome["left"], outcome["descriptors"]), outcome
    assert driver.digests[workload] == outcome["again"], outcome


@pytest.mark.parametrize("step", STEPS_UNHEALED)
def test_death_of_a_worker_is_told(driver, step, record_property):
    """A worker that dies at a step is torch's error; the next epoch is whole."""
    workload = driver.workload_for(step, WORKER)
    outcome = die(driver, workload, step)
    record_property("told_after_s", outcome.get("told_after_s"))

    assert_told(driver, workload, outcome)
    assert "error" in outcome, outcome


@pytest.mark.parametrize(("workload", "step", "passage"), LATER)
def test_later_death_of_a_worker_is_told(driver, workload, step, passage):
    """So is one that dies at a passage which only a large batch has."""
    assert_told(driver, workload, die(driver, workload, step, passage=passage))


@pytest.mark.parametrize("step", STEPS_OF[WORKER])
def test_death_of_a_worker_is_healed(driver, step):
    """With restarts a worker that dies at a step is a warning, and the epoch is the same."""
    workload = driver.workload_for(step, WORKER, heals=True)

    assert_healed(driver, workload, die(driver, workload, step, **HEALED))


@pytest.mark.parametrize(("workload", "step", "passage"), LATER)
def test_later_death_of_a_worker_is_healed(driver, workload, step, passage):
    """So is one that dies at a passage which only a large batch has."""
    outcome = die(driver, workload, step, passage=passage, **HEALED)

    assert_healed(driver, workload, outcome)


def assert_healed(driver, workload, outcome):
    """
    Check that deaths have changed no batch, and that each that was healed is one warning.
    """
    assert_whole(driver, workload, outcome)
    assert "error" not in outcome, outcome
    assert driver.digests[workload] == outcome["digests"], outcome
    assert outcome["restarts"] == len(outcome["warnings"]), outcome
    for warning in outcome["warnings"]:
        assert RESTART_WARNING.fullmatch(warning), outcome


def test_deaths_beyond_the_restarts_are_told(driver):
    """Where every replacement dies at the step, too, the error says so; the next epoch is whole."""
    outcome = die(driver, "kept", "commit: ticket", deaths=1000, restarts=2)

    assert_whole(driver, "kept", outcome)
    assert "and all 2 restarts of this epoch are used" in outcome["error"], outcome


# The trainer's death


@pytest.mark.parametrize("step", STEPS_OF[TRAINER])
def test_death_of_the_trainer_leaves_nothing(driver, step):
    """When the trainer dies at a step its workers end, say nothing, and nothing is left."""
    outcome = die(driver, driver.workload_for(step, TRAINER), step, TRAINER)

    assert_gone(outcome)


@pytest.mark.parametrize(("step", "passage"), WHILE_HEALING)
def test_death_of_the_trainer_while_it_heals_leaves_nothing(driver, step, passage):
    """So does its death between that of a worker and the start of the next."""
    assert_gone(die(driver, "mortal", step, TRAINER, passage, **HEALED))


def assert_gone(outcome):
    """
    Check that the trainer was killed, and that no process of its session has outlived it for long.
    """
    assert not outcome["hung"], outcome["errors"]
    assert -9 == outcome["status"], outcome
    assert ("", 0) == (outcome["errors"], outcome["left_at_end"]), outcome


# Any death


def test_death_at_any_passage(driver, seeded, stress_seconds):
    """Deaths at random steps, on random sides, at random passages of random workloads."""
    chance = random.Random(seeded)
    ends = time.monotonic() + stress_seconds
    while time.monotonic() < ends:
        heals = chance.random() < 0.5
        runs = driver.passages_healed if heals else driver.passages
        workload = chance.choice(list(runs))
        death = random_death(chance, runs[workload], heals)
        outcome = driver.run(workload, death, **(HEALED if heals else {}))
        try:
            assert_any(driver, workload, outcome, heals)
        except AssertionError as error:
            raise AssertionError(f"{workload}, {death}, healed: {heals}: {error}") from error


def random_death(chance, passages, heals):
    """
    Choose where somebody dies, and with healing some of those who come after, too.
    """
    (step, side), count = chance.choice(list(passages.items()))
    # Both runs of a loader's epochs were counted; nobody dies in the second.
    passage = chance.randint(1, (count + 1) // 2)
    deaths = chance.randint(1, 3) if heals else 1
    return {"step": step, "side": side, "passage": passage, "deaths": deaths}


def assert_any(driver, workload, outcome, heals):
    """
    Check a run in which somebody may have died, or nobody, because the passage was not met.
    """
    if outcome["status"] != 0:
        assert_gone(outcome)
    elif heals:
        assert_healed(driver, workload, outcome)
    else:
        assert_told(driver, workload, outcome)


def test_death_of_a_spawned_worker_is_healed(driver, stress_seconds):
    """A worker that was spawned dies at a step as one that was forked does."""
    if stress_seconds < SPAWN_FROM_S:
        pytest.skip(f"each worker imports torch: runs with --stress-seconds {SPAWN_FROM_S}")
    outcome = die(driver, "kept", "commit: ticket", multiprocessing_context="spawn", **HEALED)

    assert_healed(driver, "kept", outcome)
