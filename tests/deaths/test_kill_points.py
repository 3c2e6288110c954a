"""
Death at any instruction: a process is killed at each step of the protocol, on either side.

The steps are the STEPs of the sources, in a build of its own. In tests/helpers, kill_steps.py lists
them, kill_workloads.py has the epochs that pass them, and kill_driver.py runs each in a process.
"""

import importlib.util
import random
import re
import statistics
import time

import pytest

from tests.helpers.kill_client import (
    BUILD_TIMEOUT_S,
    HEALED,
    WORKLOADS,
    WORKLOADS_TO_HEAL,
    Driver,
    build,
)
from tests.helpers.kill_steps import SIDES, TRAINER, WORKER, names, sources

TELL_WITHIN_S = 2.0  # ten times the promise, because other programs use this machine too

# The processes that pass the steps whose name begins with this word.
WORDS_OF = {
    SIDES: "arm copy disarm park pop push reserve ring view",
    (WORKER,): "ask clock commit gather keep nothing pages populate sit snapshot stream times "
    "unkept write",
    (
        TRAINER,
    ): "close collect forsake free grant lease log looks make map order reclaim refuse release "
    "reopen resume retake return seats stop unmap unseen",
    # tests/publish/test_publish_kill_points.py has a publisher and subscribers.
    (): "feed fill",
}
SIDES_OF = {word: sides for sides, words in WORDS_OF.items() for word in words.split()}

STEPS = names()
STEPS_OF = {
    side: [step for step in STEPS if side in SIDES_OF.get(step.split(":")[0], ())] for side in SIDES
}

# Steps of a worker that can be replaced.
STEPS_UNHEALED = [step for step in STEPS_OF[WORKER] if not step.startswith("snapshot:")]

TRIES = 3
FIRST = [1] * TRIES

# Passages that are not the first of any step: between two pieces of pages, and in the trainer while
# it replaces a dead worker.
LATER = [
    ("large", step, [passage] * TRIES)
    for step in ("pages: piece counted", "reserve: begun", "populate: begun")
    for passage in (2, 3)
]
WHILE_HEALING = [
    ("reclaim: slots freed", 1),
    ("unseen: begun", 1),
    ("unseen: punched", 1),
    # The two workers' rings were opened before.
    ("reopen: write_pos", 5),
    ("reopen: read_pos", 5),
    ("reopen: write_pos", 6),
    ("reopen: read_pos", 6),
]

RESTART_WARNING = re.compile(
    r"RestartWarning: DataLoader worker \d \(pid \d+\) was killed by SIGKILL with .* in hand; "
    r"it was replaced, and no batch changes "
    r"\(restart \d+ of 10 in this epoch(, for \d that died together)?\)"
)
TORCHS_ERROR = re.compile(
    r"RuntimeError: DataLoader worker \(pid(\(s\) \d+\) exited unexpectedly"
    r"| \d+\) is killed by signal: Killed\. )"
)

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("Cython") is None, reason="Cython is missing"),
    pytest.mark.timeout(BUILD_TIMEOUT_S + 120),  # the first test builds
]


@pytest.fixture(scope="module")
def driver(request, tmp_path_factory):
    """Build the package with kill points, and start the program that runs it."""
    build()
    driver = Driver(tmp_path_factory.mktemp("steps"))
    yield driver
    driver.close()
    if driver.told_after_s:
        with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
            print(f"\n{summary(driver.told_after_s)}")


def summary(told_after_s):
    """Say how many steps there are, and how fast deaths were reported."""
    middle_ms = 1e3 * statistics.median(told_after_s)
    return (
        f"{len(STEPS)} steps; {len(told_after_s)} deaths of workers were told after "
        f"{middle_ms:.0f} ms in the median, {1e3 * max(told_after_s):.0f} ms at the longest"
    )


# The steps themselves


def test_steps_have_one_place_each():
    """A step's name stands once in the sources, and begins with a word that tells its sides."""
    assert sorted(set(STEPS)) == sorted(STEPS)
    assert {step.split(":")[0] for step in STEPS} == SIDES_OF.keys()


# The stores to the segment; all other atomics, fields and copies are private to a process. An
# order, an answer or a resume is written by one copy, so a store to one field is found here.
STORE = re.compile(
    r"atomic_(?:store|fetch)\w+\(&(?:ring|end->ring|bell|order|control)->\w+"
    r"|^\s*(?:(?:order|answer)->|(?:header\.)?(?:order|answer)\.|block\.)\w[\w.]* = "
    r"|^\s*(?:ring->cells\[.*|start\[i\]) = "
    r"|^\s*clock_count\(&"
    r"|^\s*(?:atomic_store\w+\((?:sequence|&record->released_ns),|view_copy_in\(sequence)"
    r"|memcpy\((?:ledger->base|self\.slot_start|slot) "
    r'|STEP_(?:COPY|WORDS)\("'
)
FUNCTION = re.compile(r"^\}|^\s*(?:cdef|def)\b")
STEP = re.compile(r"\bSTEP\(")


def bare_stores(lines):
    """List the numbers of the lines with a store that no step follows before the next one."""
    bare, pending = [], None
    for number, line in enumerate(lines, start=1):
        if pending and (STORE.search(line) or FUNCTION.search(line)):
            bare.append(pending)
            pending = None
        if STORE.search(line):
            pending = number
        if STEP.search(line):
            pending = None
    return bare


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.name)
def test_stores_stand_between_steps(path):
    """A step follows each store to the segment, and each copy into it, before the next one."""
    assert [] == bare_stores(path.read_text().splitlines())


def test_stores_are_found():
    """The check above knows a store when it sees one."""
    found = {
        path.name for path in sources() if any(map(STORE.search, path.read_text().splitlines()))
    }

    expected = (
        "cache.c clock.h copy.c desk.c desk.pyx doorbell.c feed.pyx gather.pyx leaf_writer.pyx "
        "ledger.c log.c order.h ring.h sample_cache.pyx slot_memory.pyx table.pyx view.h"
    )
    assert set(expected.split()) == found


@pytest.mark.thorough
def test_workloads_pass_every_step(driver):
    """Every step is passed on its sides and on no other, so that each of them can be tested."""
    passed = {key for name in WORKLOADS for key in driver.passages(name)}
    passed |= {key for name in WORKLOADS_TO_HEAL for key in driver.passages(name, heals=True)}

    assert {(step, side) for side in SIDES for step in STEPS_OF[side]} == passed


@pytest.mark.thorough
@pytest.mark.parametrize("workload", WORKLOADS_TO_HEAL)
def test_undisturbed_workloads_are_whole(driver, workload):
    """Without deaths, or if a worker dies by itself and is replaced, batches are the same."""
    if workload in WORKLOADS:
        assert_told(driver, workload, driver.undisturbed[workload])
    assert_healed(driver, workload, driver.undisturbed_healed[workload])


# A worker's death


def die(driver, workload, step, passages, side=WORKER, deaths=1, **options):
    """
    Run a workload until its process has died at a step.

    Args:
        passages: Those to try, one after the other, because not every run meets every passage.

    Returns:
        The outcome, without the counts of passages.
    """
    for passage in passages:
        death = {"step": step, "side": side, "passage": passage, "deaths": deaths}
        outcome = driver.run(workload, death, **options)
        outcome.pop("passages", None)
        if outcome.get("died", 1):
            return outcome
    pytest.fail(f"no process has passed {step!r} in {workload!r} at {passages}: {outcome}")


def assert_told(driver, workload, outcome):
    """
    Check that a worker's death is torch's error, and that the batches before it are right, as are
    all those of the epochs that the same loader served afterwards.
    """
    assert_in_order(outcome)
    assert driver.digests[workload] == outcome["again"], outcome
    delivered = driver.digests[workload][: len(outcome["digests"])]
    assert delivered == outcome["digests"], outcome
    if "error" in outcome:
        assert TORCHS_ERROR.fullmatch(outcome["error"]), outcome
        assert outcome["told_after_s"] < TELL_WITHIN_S, outcome
        driver.told_after_s.append(outcome["told_after_s"])
    else:
        # All batches were there before it died: the driver waits for the error otherwise.
        assert driver.digests[workload] == delivered, outcome


def assert_in_order(outcome):
    """Check that nothing hung, and that nothing was printed or left."""
    assert not outcome["hung"], outcome["errors"]
    assert "failure" not in outcome, outcome["failure"]
    assert "" == outcome["errors"]
    assert 0 == outcome["status"], outcome
    assert (0, 0) == (outcome["left"], outcome["descriptors"]), outcome


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("workload", "step", "passages"), [*((None, step, FIRST) for step in STEPS_UNHEALED), *LATER]
)
def test_death_of_a_worker_is_told(driver, workload, step, passages, record_property):
    """The death of a worker at a step is torch's error; the next epoch is whole."""
    name = workload or driver.workload_for(step, WORKER)
    outcome = die(driver, name, step, passages)
    record_property("told_after_s", outcome.get("told_after_s"))

    assert_told(driver, name, outcome)
    assert workload or "error" in outcome, outcome


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("workload", "step", "passages"), [*((None, step, None) for step in STEPS_OF[WORKER]), *LATER]
)
def test_death_of_a_worker_is_healed(driver, workload, step, passages):
    """With restarts the death of a worker in mid-epoch is a warning, and the epoch is the same."""
    if workload is None:
        workload = driver.workload_for(step, WORKER, heals=True)
        count = driver.passages(workload, heals=True)[step, WORKER]
        passages = [max(1, count // part) for part in (2, 4, 8, count)]

    assert_healed(driver, workload, die(driver, workload, step, passages, **HEALED))


def assert_healed(driver, workload, outcome):
    """Check that deaths have changed no batch, and that each healed death is one warning."""
    assert_in_order(outcome)
    assert "error" not in outcome, outcome
    assert driver.digests[workload] == outcome["digests"], outcome
    assert outcome["restarts"] == len(outcome["warnings"]), outcome
    for warning in outcome["warnings"]:
        assert RESTART_WARNING.fullmatch(warning), outcome


# The trainer's death


@pytest.mark.thorough
@pytest.mark.parametrize("step", STEPS_OF[TRAINER])
def test_death_of_the_trainer_leaves_nothing(driver, step):
    """When the trainer dies at a step, its workers end, print nothing, and nothing is left."""
    assert_gone(die(driver, driver.workload_for(step, TRAINER), step, FIRST, TRAINER))


@pytest.mark.thorough
@pytest.mark.parametrize(("step", "passage"), WHILE_HEALING)
def test_death_of_the_trainer_while_it_heals_leaves_nothing(driver, step, passage):
    """The same holds if it dies between a worker's death and the start of the replacement."""
    assert_gone(die(driver, "mortal", step, [passage] * TRIES, TRAINER, **HEALED))


def assert_gone(outcome):
    """
    Check that the trainer was killed, and that no process of its session has outlived it for long.
    """
    assert not outcome["hung"], outcome["errors"]
    assert -9 == outcome["status"], outcome
    assert ("", 0) == (outcome["errors"], outcome["left_at_end"]), outcome


# Any death


@pytest.mark.thorough
def test_death_at_any_passage(driver, seeded, stress_seconds):
    """Deaths at random steps, on random sides, at random passages of random workloads."""
    chance = random.Random(seeded)
    ends = time.monotonic() + stress_seconds
    while time.monotonic() < ends:
        heals = chance.random() < 0.5
        workload = chance.choice(WORKLOADS_TO_HEAL if heals else WORKLOADS)
        death = random_death(chance, driver.passages(workload, heals), heals)
        outcome = driver.run(workload, death, **(HEALED if heals else {}))
        try:
            assert_any(driver, workload, outcome, heals)
        except AssertionError as error:
            raise AssertionError(f"{workload}, {death}, healed: {heals}: {error}") from error


def random_death(chance, passages, heals):
    """Choose where a process dies, and with healing also some of its replacements."""
    (step, side), count = chance.choice(list(passages.items()))
    # Without healing epochs are run once more, and counted, without deaths.
    passage = chance.randint(1, count if heals else (count + 1) // 2)
    deaths = chance.randint(1, 3) if heals else 1
    return {"step": step, "side": side, "passage": passage, "deaths": deaths}


def assert_any(driver, workload, outcome, heals):
    """Check a run with a death, or with none if the passage was not met."""
    if outcome["status"] != 0:
        assert_gone(outcome)
    elif heals:
        assert_healed(driver, workload, outcome)
    else:
        assert_told(driver, workload, outcome)
