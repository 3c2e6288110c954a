"""What limits a loop, and what to change: verdicts on loops whose times are made up."""

import json
import random
from dataclasses import asdict, replace

import pytest

from shmloader.advice.case import Case
from shmloader.advice.report import Report, report_on
from shmloader.stats.setting import SERVER

from .loops import BATCHES, MIB, loop, one_in_twelve, report


def wait_with(advice, **about):
    """The share of waiting of the same loop with the advice applied."""
    names = {"num_workers": "workers"}
    changed = {names.get(name, name): value for name, value in advice.items()}
    return report(**{**about, **changed}).facts["wait_share"]


def uneven(number):
    return 0.01 * (1 + 0.8 * random.Random(number).uniform(-1, 1))


def one_in_fifty(number):
    return 0.5 if number % 50 == 25 else 0.004


def of_worker_one(number):
    return 0.03 if number % 4 == 1 else 0.01


LOADS = [
    ("fetching", {"fetching": 0.02}),
    ("fetching", {"fetching": 0.2, "workers": 8, "cores": 2.0}),
    ("fetching", {"fetching": uneven, "workers": 1}),
    ("fetching", {"fetching": 0.02, "in_order": False}),
    ("fetching", {"fetching": 0.02, "cpu": 0.9, "cores": 16.0}),
    ("fetching", {"fetching": 0.04, "workers": 4, "step": 0.008, "prefetch_factor": 1}),
    ("collating", {"fetching": 0.001, "collating": 0.03}),
    ("collating", {"fetching": 0.01, "collating": 0.02, "workers": 4, "step": 0.003}),
    ("step", {"fetching": 0.001, "step": 0.05}),
    ("step", {"fetching": 0.02, "workers": 8, "step": 0.01}),
    ("step", {"fetching": one_in_fifty, "step": 0.05, "prefetch_factor": 8}),
    ("transport", {"fetching": 0.001, "own": 0.02}),
    ("transport", {"fetching": 0.001, "own": 0.02, "late": 0.1}),
    ("sample", {"fetching": one_in_fifty, "longest": one_in_fifty, "indices": lambda n: 4 * n}),
    ("sample", {"fetching": one_in_fifty, "workers": 4}),
    ("worker", {"fetching": of_worker_one, "workers": 4}),
    ("worker", {"fetching": lambda n: 0.04 if n % 2 else 0.008}),
    ("memory", {"fetching": 0.002, "blocked": 0.02}),
    (
        "memory",
        {"fetching": 0.002, "blocked": 0.02, "spilled": 1.0, "spills": {"too_few_bytes": 200}},
    ),
    ("held", {"fetching": 0.02, "workers": 6, "slots": 3}),
    (
        "held",
        {"fetching": 0.001, "own": 0.02, "spilled": 0.9, "spills": {"too_few_slots": 180}},
    ),
    ("cpu", {"fetching": 0.08, "workers": 8, "cpu": 0.2, "delayed": 0.75, "cores": 2.0}),
    (
        "cpu",
        {"step": 0.05, "workers": 6, "cpu": 0.4, "delayed": 0.5, "late": 0.5, "cores": 2.0},
    ),
    ("cpu", {"fetching": 0.001, "own": 0.02, "late": 0.6, "cores": 2.0}),
    ("cpu", {"collating": 0.3, "workers": 12, "cpu": 0.1, "delayed": 0.88, "cores": 2.0}),
]

NAMES = [f"{cause}-{number}" for number, (cause, _) in enumerate(LOADS)]


@pytest.mark.parametrize(("cause", "about"), LOADS, ids=NAMES)
def test_cause_is_named(cause, about):
    """The verdict is the cause by which the loop was made, and it is the text's first word."""
    found = report(**about)

    assert cause == found.cause
    assert str(found).startswith(f"{cause}: the training loop waits ")


@pytest.mark.parametrize(("cause", "about"), LOADS, ids=NAMES)
def test_advice_helps(cause, about):
    """With the advice the loop waits hardly at all, or half as long, or it is a limit of cores."""
    found = report(**about)
    if cause == "cpu" or "spilled" in about or not found.advice or "ring_bytes" in found.advice:
        return  # what the made-up loop does then is not known
    before = found.facts["wait_share"]

    assert wait_with(found.advice, **about) < max(0.11, 0.5 * before)


# A loop that keeps its batches, so that others are copied; and one that keeps eight for a while.
KEPT = {
    "fetching": 0.001, "own": 0.02, "slots": 6, "spills": {"too_few_slots": 200}, "spilled": 1.0
}  # fmt: skip
KEPT_LATE = {
    **KEPT,
    "spilled": 0.75,
    "held": 8 * (0.75 * 0.025 + 0.25 * 0.005) - 0.005,
    "own": lambda n: 0.02 * (n % 100 < 75),
}


def own_cores(workers):
    """A loop whose workers and step use up two cores themselves."""
    share = 2 / (workers + 1)
    about = {"cpu": share, "delayed": 1 - share, "trainer_cpu": share, "late": 1 - share}
    return {**about, "fetching": 0.01 * workers, "step": 0.01, "workers": workers, "cores": 2.0}


def threaded(**about):
    """A loop with two workers that may have threads."""
    loop = {"fetching": 0.2, "step": 0.01, "workers": 2, "cores": 2.0, "may_have_threads": True}
    return {**loop, **about}


COMPUTING = {"fetching": 0.04, "step": 0.002, "cpu": 1.0, "cores": 2.0}
LACKING = {"fetching": 0.02, "delayed": 0.5, "cpu": 0.4, "cores": 2.0}
UNEQUAL = {"fetching": one_in_twelve, "collating": 0.0, "step": 0.008, "workers": 4}
PERSISTENT = "persistent_workers=True keeps the workers"

# What a loop is like, its cause if that matters, the advice, and words that are said or are not.
SAID = {
    "what hides the fetching, and no more": (
        {"fetching": 0.1, "collating": 0.0, "step": 0.02, "workers": 2},
        *(None, {"num_workers": 5}),
        "set num_workers=5: the loop would wait about 0 % of the time, 50 batches/s",
        "",
    ),
    "no more workers than the cores can serve": (
        {**COMPUTING, "workers": 1},
        *("fetching", {"num_workers": 2}, "2 cores cannot deliver more", ""),
    ),
    "cores that are used up": (
        {**COMPUTING, "workers": 2},
        *(None, {}, "limited by 2 cores: a batch costs a worker 41 ms of processor time", ""),
    ),
    "one core": ({**COMPUTING, "workers": 1, "cores": 1.0}, None, {}, "limited by 1 core: ", ""),
    "fewer workers that gain nothing": (
        {"fetching": 0.08, "workers": 8, "cpu": 0.25, "delayed": 0.75, "cores": 2.0},
        *(None, {}, "num_workers=2 would do about as well", ""),
    ),
    "two workers that use the cores up": (own_cores(2), None, None, "", "other programs"),
    "eight workers that use the cores up": (own_cores(8), None, None, "", "other programs"),
    "samples that wait": (threaded(cpu=0.02), None, None, "fetch_threads=8", ""),
    "no threads": (threaded(cpu=0.02, may_have_threads=False), None, None, "", "fetch_threads"),
    "samples that compute": (threaded(cpu=0.9), None, None, "", "fetch_threads"),
    "samples that wait for cores": (
        threaded(cpu=0.2, delayed=0.6),
        *(None, None, "", "fetch_threads"),
    ),
    "slow samples beside which others could go on": (
        {**UNEQUAL, "prefetch_factor": 4},
        *("sample", {"assignment": "dynamic"}, 'pass seed_by="batch" too', ""),
    ),
    "a start that takes long": ({"first_s": 1.0, "persistent": False}, None, None, PERSISTENT, ""),
    "workers that live on": ({"first_s": 1.0, "persistent": True}, None, None, "", PERSISTENT),
    "a short start": ({"first_s": 0.01, "persistent": False}, None, None, "", PERSISTENT),
    "lacking cores": ({**LACKING, "first_s": 0.1, "persistent": False}, "cpu", None, "", ""),
    # Workers that start together wait for cores, and not afterwards, when they fetch.
    "lacking at the start": (
        {**LACKING, "first_s": 2.0, "persistent": False},
        *("fetching", None, "", ""),
    ),
    "lacking, without a start": (
        {**LACKING, "first_s": 2.0, "persistent": True},
        *("cpu", None, "", ""),
    ),
    "slots that never come back": (
        {**KEPT, "length": 40},
        *(None, {"slots": 46}),
        "none of the 2 batches that are held in slots was dropped",
        "",
    ),
    "too many batches to be kept": (
        {**KEPT, "length": 100_000},
        *("held", {}, "retain parts or results of batches", ""),
    ),
    "too large batches to be kept": (
        {**KEPT, "length": 100, "size": 1024 * MIB},
        *("held", {}, "retain parts or results of batches", ""),
    ),
    "too large batches to be dropped late": (
        {**KEPT_LATE, "size": 2048 * MIB},
        *("held", {}, "drop batches sooner; there is not enough memory for", ""),
    ),
}


@pytest.mark.parametrize("name", SAID)
def test_what_is_said(name):
    """Each loop has its cause, and the advice and the words that fit it."""
    about, cause, advice, said, unsaid = SAID[name]
    found = report(**about)

    assert cause in (None, found.cause)
    assert advice is None or advice == found.advice
    assert said in str(found)
    assert not unsaid or unsaid not in str(found)


BESIDE_OTHERS = [
    # Each process finds a core for half of the time in which it wants one.
    {"fetching": 0.008, "step": 0.006, "workers": 1, "late": 0.35, "trainer_cpu": 0.35},
    {"fetching": 0.008, "step": 0.002, "workers": 1, "late": 0.1, "trainer_cpu": 0.1},
    {"fetching": 0.012, "step": 0.006, "workers": 2, "late": 0.45, "trainer_cpu": 0.45},
    {"fetching": 0.006, "step": 0.006, "workers": 2, "late": 0.45, "trainer_cpu": 0.45},
    {"fetching": 0.001, "step": 0.05, "workers": 6, "late": 0.5, "trainer_cpu": 0.45},
    # Eight workers have a part of a core.
    {"fetching": 0.08, "workers": 8, "cpu": 0.1, "delayed": 0.85},
]


@pytest.mark.parametrize("about", BESIDE_OTHERS, ids=str)
def test_cores_that_others_use_are_not_promised(about):
    """Where the loop lacks cores that it does not use, that is said, and nothing promised."""
    found = report(**{"cpu": 0.5, "delayed": 0.5, "cores": 2.0, **about})

    assert (True, {}) == (found.cause in ("cpu", "step"), found.advice)
    assert 2 - found.facts["cores_used"] == found.facts["cores_of_others"] > 0
    assert "other programs use the rest of 2 cores: this loop had " in str(found)
    assert "would do" not in str(found)


def test_workers_that_wait_for_a_network_beside_others_are_more():
    """They want a core for a part of their time alone, so others leave room for more of them."""
    about = {"cpu": 0.1, "delayed": 0.15, "trainer_cpu": 0.1, "late": 0.15, "cores": 2.0}
    found = report(fetching=0.03, step=0.005, workers=2, **about)

    assert "fetching" == found.cause
    assert found.advice["num_workers"] > 2
    assert "other programs use the rest" in str(found)


def test_a_slow_batch_at_the_start_is_one_like_others():
    """What is ordered at the start is no measure: depth is advised wherever the slow batch is."""
    for slow in (8, 50, 90):
        made = [0.5 if number % 100 == slow else 0.004 for number in range(BATCHES)]
        found = report(fetching=made, step=0.012)

        assert "sample" == found.cause
        assert {"prefetch_factor": 24} == found.advice


def test_no_more_is_ordered_than_memory_holds():
    """Batches for which there is no memory are not ordered ahead, by depth or by more workers."""
    about = {"fetching": lambda n: 0.5 if n % 50 == 25 else 0.004, "step": 0.012}
    found = report(**about, size=512 * MIB, ring_bytes=8192 * MIB, most_bytes=8192 * MIB)
    ahead = found.advice.get("num_workers", 2) * found.advice.get("prefetch_factor", 2)
    full = report(fetching=0.02, size=512 * MIB, ring_bytes=3072 * MIB, most_bytes=3072 * MIB)

    assert report(**about).advice["prefetch_factor"] > 8
    assert 2 * 2 < ahead < 16
    assert {} == full.advice
    assert "there is not enough memory for more batches of 537 MB" in str(full)


def test_the_trainers_own_work_is_no_waiting_for_batches():
    """What next() does itself is not put down to the workers, and no advice makes it vanish."""
    epoch, timeline, setting = loop(fetching=0.01, step=0.005, own=0.004)
    found = report(fetching=0.04, collating=0.0, step=0.005, own=0.005)

    assert 1.0 == Case(epoch, timeline.after(4), setting).excess
    assert {"num_workers": 4} == found.advice
    assert "the loop would wait about 50 % of the time" in str(found)


@pytest.mark.parametrize(("copied_part", "is_named"), [(0.8, True), (0.2, False), (0.0, False)])
def test_copies_are_named_where_next_makes_them(copied_part, is_named):
    """Where most of next() is copies, the advice is about them; where none is, no word is."""
    epoch, timeline, setting = loop(fetching=0.001, own=0.02)
    epoch = replace(epoch, copy_s=copied_part * epoch.next.total_s)
    found = report_on(epoch, timeline, setting)

    assert "transport" == found.cause
    assert copied_part == pytest.approx(found.facts["copy_share"])
    assert ("docs/gpu.md" in str(found)) == is_named
    assert ("time the sampler" in str(found)) != is_named
    assert ("pinning" in str(found)) == (copied_part > 0)


def test_slow_samples_are_named():
    """The dataset's indices of the slowest samples are in the text and in the facts."""
    about = {"longest": one_in_fifty, "indices": lambda number: 7 * number}
    found = report(fetching=one_in_fifty, **about)

    assert {7 * number for number in (25, 75, 125, 175)} >= set(found.facts["samples"])
    assert str(found.facts["samples"][0]) in str(found)


def test_a_slow_worker_stays_slow():
    """Among more workers the slow one is still one of them: by turns there must be many."""
    about = {"fetching": lambda n: 0.04 if n % 2 else 0.004, "step": 0.005, "collating": 0.0}
    stream, free = (
        report(**about, may_be_dynamic=may_be_dynamic) for may_be_dynamic in (False, True)
    )

    assert "worker" == stream.cause == free.cause
    assert 7 <= stream.advice["num_workers"] <= 9
    assert "assignment" not in stream.advice
    assert "dynamic" == free.advice["assignment"]
    assert free.advice["num_workers"] <= 4


@pytest.mark.parametrize("about", [{"may_be_dynamic": False}, {"assignment": "dynamic"}], ids=str)
def test_dynamic_assignment_is_not_advised(about):
    """A stream's workers cannot stand in for each other; and what is set is not advised again."""
    about = {"fetching": one_in_fifty, "step": 0.012, **about}
    found = report(**about)

    assert "sample" == found.cause
    assert {"prefetch_factor"} == found.advice.keys()


def test_slots_and_workers_may_both_be_short():
    """Where workers lack slots and would be too few with them, both are advised."""
    found = report(fetching=0.08, workers=5, slots=2, step=0.01)

    assert "held" == found.cause
    assert found.advice["num_workers"] >= 8
    assert found.advice["slots"] >= 2 * found.advice["num_workers"] + 2


def test_bytes_are_doubled():
    """Where ring_bytes is too small for what is on its way, enough for that is advised."""
    spills = {"too_few_bytes": 200}
    about = {"fetching": 0.004, "blocked": 0.02, "spilled": 1.0, "spills": spills}
    small, large = (report(**about, ring_bytes=32 * MIB, size=size) for size in (1000, 20 * MIB))

    assert {"ring_bytes": 64 * MIB} == small.advice
    assert large.advice["ring_bytes"] >= 10 * 20 * MIB


def test_bytes_and_workers_may_both_be_short():
    """Where workers lack bytes and would be too few with them, both are advised."""
    spills = {"too_few_bytes": 200}
    about = {"fetching": 0.03, "step": 0.005, "own": 0.01, "blocked": 0.03, "size": 16 * MIB}
    found = report(**about, spilled=1.0, spills=spills, ring_bytes=26 * MIB)

    assert "memory" == found.cause
    assert 6 <= found.advice["num_workers"] <= 8
    assert found.advice["ring_bytes"] >= 2 * found.advice["num_workers"] * 16 * MIB


def test_no_more_bytes_are_advised_than_there_are():
    """ring_bytes is raised to what the machine has; where it is that, other options are named."""
    about = {"blocked": 0.02, "spilled": 1.0, "spills": {"too_few_bytes": 200}}
    some, none = (report(**about, ring_bytes=32 * MIB, most_bytes=most * MIB) for most in (48, 32))

    assert 48 * MIB == some.advice["ring_bytes"]
    assert {} == none.advice
    assert "lower prefetch_factor or batch_size: ring_bytes is already all" in str(none)


def test_bytes_for_batches_that_make_room_for_others():
    """Batches that are copied for an earlier one lack bytes and not slots."""
    about = {"slots": None, "size": MIB, "ring_bytes": 4 * MIB}
    found = report(**{**KEPT, **about, "spills": {"for_an_earlier_batch": 200}})

    assert {"ring_bytes"} == set(found.advice)


def test_slots_for_batches_that_come_back_late():
    """As many slots are advised as batches are held, those that were copied included."""
    late = report(**KEPT_LATE)

    assert "held" == late.cause
    assert 4 + 8 + 2 <= late.advice["slots"] <= 4 + 9 + 2
    assert "or drop batches sooner" in str(late)


@pytest.mark.parametrize(("batches", "is_judged"), [(BATCHES, True), (8, False)])
@pytest.mark.parametrize("is_over", [True, False])
def test_the_start_of_short_epochs_is_said(batches, is_judged, is_over):
    """A third of an epoch of 0.1 seconds, or of few batches, is a third of all the others too."""
    epoch, timeline, setting = loop(0.001, 0.0, 0.0004, persistent=False, first_s=0.045)
    epoch = replace(epoch, is_over=is_over, batches=batches)
    found = report_on(epoch, timeline.after(BATCHES - batches), setting)

    assert is_judged == (found.cause is not None)
    assert is_over == ("persistent_workers=True keeps the workers" in str(found))


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("fork", None),
        ("spawn", 'preload=("torch",) imports once for all of them'),
        ("forkserver", "without preload=() one process imports them for all"),
        (SERVER, 'preload=("__main__",) imports your script once'),
    ],
)
def test_what_to_write_instead_of_a_start_is_said(start, said):
    """From a tenth of the epoch on, and only then; nothing of imports where nothing is imported."""
    wall_s = loop(first_s=0.0)[0].wall_s
    late, early = (
        str(report(first_s=part * wall_s, persistent=False, start=start)) for part in (0.2, 0.08)
    )

    assert "persistent_workers=True keeps the workers" in late
    assert (said is not None) == ("import" in late)
    assert said is None or said in late
    assert "persistent_workers" not in early


def test_the_last_step_is_not_known():
    """The log does not have it: it is no step of no time, which few batches would feel."""
    epoch, timeline, setting = loop(0.02, 0.0, 0.005)
    few = timeline.after(len(timeline) - 10)
    known = Case(epoch, few, setting).facts
    few.step[-1] = 0.0
    unknown = Case(epoch, few, setting).facts

    assert 0.005 == pytest.approx(unknown["step_s"])
    for name in ("batches_per_s", "wait_share"):
        assert known[name] == pytest.approx(unknown[name])


def test_waiting_at_the_start_of_an_epoch_is_said():
    """Steady batches may come at once although the trainer waited for a third of the epoch."""
    epoch, timeline, setting = loop(0.001, 0.0, 0.005)
    late = replace(epoch, first_s=0.5)
    said = "the first batch of the epoch came after 500 ms of 1.1 s"

    assert said not in str(report_on(epoch, timeline, setting))
    assert said in str(report_on(late, timeline, setting))
    # Of an epoch that runs, it is not known how much that will be.
    assert said not in str(report_on(replace(late, is_over=False), timeline, setting))


def test_nothing_to_report():
    """Without an epoch there is no verdict, and the text says so."""
    assert None is report_on(None, None, None).cause
    assert "no epoch has run with workers" in str(report_on(None, None, None))


FEW = "iterate at least 10 batches of one epoch first; epoch 2 has had 9"
LATE = "the first batch of the epoch came after 5 s of 7.11 s"
KEEP = ": persistent_workers=True keeps the workers for the next epoch"


@pytest.mark.parametrize(
    ("about", "reason"),
    [
        ({"seen": 9}, FEW),
        ({"batches": 9}, FEW),
        (
            {"batches": 31, "workers": 8},
            "iterate at least 32 batches of one epoch first; epoch 2 has had 31",
        ),
        (
            {"step": 2e-6},
            "give the loop a training step first; it has no step, asks for the next batch 2 µs ",
        ),
        ({"first_s": 5.0, "persistent": False, "fetching": 0.02}, LATE + KEEP),
        ({"first_s": 5.0, "persistent": True, "fetching": 0.02}, LATE),
    ],
    ids=["few in the log", "few", "few for 8 workers", "no step", "start", "start, persistent"],
)
def test_what_is_too_short_is_not_judged(about, reason):
    """Of a run that shows nothing but its start, or without a step, that is said, and no more."""
    about = dict(about)
    seen, batches = about.pop("seen", BATCHES), about.pop("batches", BATCHES)
    epoch, timeline, setting = loop(**about)
    epoch, timeline = replace(epoch, batches=batches), timeline.after(BATCHES - seen)
    (line,) = report_on(epoch, timeline, setting).lines

    assert Report(None, lines=(line,)) == report_on(epoch, timeline, setting)
    assert line.startswith(f"too short to judge: {reason}")
    assert (line == f"too short to judge: {reason}") == ("no step" not in reason)


def test_a_report_is_json():
    """What a report holds becomes JSON."""
    found = json.loads(json.dumps(asdict(report())))

    assert "fetching" == found["cause"]
    assert 0 < found["facts"]["wait_share"] < 1
