"""
Small machines: limits on descriptors, addresses, file sizes and shared memory are met with errors.
"""

import pytest

from tests.helpers.groups import memory_group, run_with_dev_shm

PROLOGUE = """
import os, re, resource, warnings
import torch
from tests.helpers.datasets import Computed, Numbered, batch
from shmloader import DataLoader, OutOfSharedMemory, RetentionWarning
warnings.simplefilter("ignore")

def limit(which, value):
    resource.setrlimit(which, (value, resource.getrlimit(which)[1]))

def addresses():
    return int(re.search(r"VmSize:\\s+(\\d+)", open("/proc/self/status").read()).group(1)) << 10

def whole_epoch(**options):
    with DataLoader(Numbered(80), batch_size=2, num_workers=2, **options) as loader:
        held = list(loader)
    assert len(held) == 40
    assert all(torch.equal(batch(i, 2), made) for i, made in enumerate(held))

def join_the_group():
    with open(os.environ["GROUP"] + "/cgroup.procs", "w") as members:
        members.write(str(os.getpid()))

def megabytes(index):
    return torch.full((3 << 20,), index, dtype=torch.uint8)
"""


@pytest.fixture
def run(run_program):
    """Runs a script in a process of its own, with variables, and returns what it printed."""

    def play(script, **environment):
        status, lines, errors = run_program(PROLOGUE + script, **environment)
        assert 0 == status, errors
        return lines

    return play


@pytest.mark.thorough
@pytest.mark.parametrize("megabytes", [32, 128, 512])
def test_few_addresses(run, megabytes):
    """Under RLIMIT_AS a loader works, or fails at the start with the reason: no worker dies."""
    script = f"""
limit(resource.RLIMIT_AS, addresses() + ({megabytes} << 20))
try:
    whole_epoch()
    print("works")
except (OutOfSharedMemory, OSError) as error:
    print(type(error).__name__)
"""
    (outcome,) = run(script)
    assert outcome in (["works"] if megabytes >= 512 else ["works", "OutOfSharedMemory"])


@pytest.mark.core(every=10)
@pytest.mark.parametrize("backing", ["memfd", "posix"])
@pytest.mark.parametrize("exponent", [10, 16, 24, 27, 32])
def test_small_files(run, exponent, backing):
    """Under RLIMIT_FSIZE a loader works with shorter ranges, or says why not; no signal."""
    script = f"""
limit(resource.RLIMIT_FSIZE, 1 << {exponent})
try:
    whole_epoch()
    print("works")
except OutOfSharedMemory as error:
    print("slots in a segment" in str(error) and "(`ulimit -f` limits a file to" in str(error))
"""
    assert run(script, SHMLOADER_BACKING=backing) == ["works" if exponent >= 24 else "True"]


EIGHT_MEGABYTES = """
with DataLoader(Computed(8, megabytes), batch_size=None, num_workers=2) as loader:
    held = []
    try:
        for made in loader:
            held.append(made)
    except OutOfSharedMemory as error:
        assert "ENOSPC" in str(error) and "lower batch_size" in str(error)
        print("refused")
    assert all(bool((made == i).all()) for i, made in enumerate(held))
    print(len(held))
"""


@pytest.mark.thorough
def test_a_full_dev_shm_is_an_error():
    """With the posix backing on 8 MB, batches that do not fit raise; no SIGBUS."""
    refused, count = run_with_dev_shm("size=8m", PROLOGUE + EIGHT_MEGABYTES)
    assert "refused" == refused
    assert int(count) <= 2


@pytest.mark.thorough
def test_a_control_group_is_an_error_not_a_kill(run):
    """Workers that fill pages at the same time stop short of their control group's limit."""
    script = """
SAMPLE = torch.ones(1 << 20, dtype=torch.uint8)

def sample(index):
    return SAMPLE

join_the_group()
try:
    list(DataLoader(Computed(1200, sample), batch_size=300, num_workers=2, ring_bytes=2 << 30))
except OutOfSharedMemory as error:
    print("refused" if "MB are left" in str(error) and os.environ["GROUP"] in str(error) else error)
"""

    with memory_group(600 << 20) as group:
        assert ["refused"] == run(script, GROUP=str(group))


LIMITED = """
import torch.utils.data

def sample(index):
    return torch.full((602112 // 4,), index % 251, dtype=torch.int32)  # 64 of them: 38.5 MB

def is_right(number, made):
    return [(64 * number + i) % 251 for i in range(64)] == made[:, -1].tolist()

def epoch(kind, workers, batches, **options):
    loader = kind(Computed(64 * batches, sample), batch_size=64, num_workers=workers, **options)
    return sum(is_right(number, made) for number, made in enumerate(loader))
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("which", "limit", "workers"),
    [
        ("RLIMIT_AS", 16000, 8),
        ("RLIMIT_AS", 1200, 2),
        ("RLIMIT_FSIZE", 130, 4),
    ],
)
def test_limits_of_batch_systems(run, which, limit, workers):
    """Under `ulimit -v` and -f, batches of 38.5 MB pass on fewer slots, as they do with torch."""
    script = f"""
limit(resource.{which}, {limit} * 10**6)
print(epoch(DataLoader, {workers}, 10), epoch(torch.utils.data.DataLoader, {workers}, 10))
"""
    assert ["10 10"] == run(LIMITED + script)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("which", "megabytes", "option"), [("RLIMIT_AS", 1200, "-v"), ("RLIMIT_FSIZE", 200, "-f")]
)
def test_a_batch_too_large_for_a_limit(run, which, megabytes, option):
    """With slots that are too many it names the limit, and a number of slots that is low enough."""
    script = f"""
limit(resource.{which}, {megabytes} * 10**6)
try:
    print(epoch(DataLoader, 4, 2, slots=SLOTS))
except ValueError as error:
    print(str(error).strip().splitlines()[-1])
"""
    text = run(LIMITED + script.replace("SLOTS", "14"))[-1]
    assert f"because `ulimit {option}` limits" in text
    assert f"{megabytes}.0 MB: raise that limit, or lower slots from " in text
    assert ["2"] == run(LIMITED + script.replace("SLOTS", text.rpartition(" ")[2]))


KEEPS = """
import numpy
from shmloader import Pool

join_the_group()

def sample(index):
    return torch.full((1 << 20,), index % 251, dtype=torch.uint8)

loader = DataLoader(Computed(400, sample), batch_size=10, num_workers=2)

def keep_all():
    return sum(int(made[0, -1]) for made in list(loader))

def call():
    given = numpy.ones(100 << 20, numpy.uint8)
    with Pool(2, "fork") as pool:
        return int(sum(pool.map(numpy.max, [given] * 6)))

print(WHAT())
"""


@pytest.mark.thorough
@pytest.mark.parametrize("megabytes", range(380, 481, 50))
def test_copies_that_are_kept_in_a_control_group(run_program, megabytes):
    """Where they need as much as there is, it is enough or an error, and no kill."""
    with memory_group(megabytes << 20) as group:
        script = PROLOGUE + KEEPS.replace("WHAT", "keep_all")
        status, lines, errors = run_program(script, GROUP=str(group))
    assert (0, ["4286"]) == (status, lines) or "OutOfSharedMemory: " in errors


@pytest.mark.thorough
def test_arguments_in_a_control_group(run):
    """As with the standard pool, they are not all copied at once."""
    with memory_group(300 << 20) as group:
        assert ["6"] == run(KEEPS.replace("WHAT", "call"), GROUP=str(group))


GROUP = """
import shmloader

join_the_group()

def records(count):
    for number in range(count):
        yield number, bytes([number % 251]) * (1 << 20)
"""


@pytest.mark.thorough
def test_a_list_without_room_is_an_error_not_a_kill(run):
    """A list that outgrows its control group is refused, with its size and what is left."""
    script = """
try:
    shmloader.SharedList(records(4000))
except OutOfSharedMemory as error:
    text = re.sub(r"[0-9.]+ MB", "N MB", str(error)).replace(os.environ["GROUP"], "GROUP")
    print(text.replace(str(os.getpid()), "PID"))
print(shmloader.SharedList(records(3))[2][0])
"""
    with memory_group(500 << 20) as group:
        text, number = run(GROUP + script, GROUP=str(group))

    assert text.startswith(
        "a list of N MB so far needs more shared memory, but N MB are left to process PID below "
        "the limit of N MB of its control group GROUP: write the list to a file with "
    )
    assert "2" == number
