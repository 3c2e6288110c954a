"""
Small machines: limits on descriptors, addresses, file sizes and shared memory are met with errors.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
LONGEST_S = 60

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

def megabytes(index):
    return torch.full((3 << 20,), index, dtype=torch.uint8)
"""


def run(script, *before, **environment):
    """
    Run a script in a process of its own and return what it printed.

    Args:
        before: A command to which the interpreter's command line is appended.
    """
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), **environment}
    done = subprocess.run(
        [*before, sys.executable, "-c", PROLOGUE + script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_few_descriptors():
    """Under RLIMIT_NOFILE=64 everything can be kept, in hundreds of batches."""
    run("limit(resource.RLIMIT_NOFILE, 64); whole_epoch(slots=100); whole_epoch()")


def test_maps_and_descriptors_stay_constant():
    """Neither maps nor descriptors grow with the batches that are kept, leased or spilled."""
    script = """
with DataLoader(Numbered(1200), batch_size=2, num_workers=2, slots=300) as loader:
    batches = iter(loader)
    held, maps, descriptors = [next(batches)], [], []
    for made in batches:
        held.append(made)
        maps.append(sum("memfd" in line for line in open("/proc/self/maps")))
        descriptors.append(len(os.listdir("/proc/self/fd")))
    assert len(held) == 600
print(min(maps), max(maps), max(descriptors) - min(descriptors))
"""
    # The table, and the slots, which are left out of core dumps. A guard opens and closes parts of
    # the one mapping, which the kernel lists one by one.
    assert run(script, SHMLOADER_DEBUG="0") == ["2 2 0"]


@pytest.mark.core(every=5)
@pytest.mark.parametrize("megabytes", [32, 64, 128, 256, 512, 4096])
def test_few_addresses(megabytes):
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


@pytest.mark.core(every=5)
@pytest.mark.parametrize("backing", ["memfd", "posix"])
@pytest.mark.parametrize("exponent", [16, 24, 27, 32])
def test_small_files(exponent, backing):
    """Under RLIMIT_FSIZE a loader works with shorter ranges, or says why not; no signal."""
    script = f"""
limit(resource.RLIMIT_FSIZE, 1 << {exponent})
try:
    whole_epoch()
    print("works")
except OutOfSharedMemory as error:
    print("cannot create 10 slots" in str(error))
"""
    assert run(script, SHMLOADER_BACKING=backing) == ["works" if exponent >= 27 else "True"]


def in_a_small_dev_shm():
    """The command that runs another with a /dev/shm of 8 MB; skips if that is not allowed."""
    mount = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        prefix = [*command, "sh", "-c", f'{mount} && exec "$@"', "sh"]
        if (
            shutil.which("unshare")
            and subprocess.run([*prefix, "true"], capture_output=True).returncode == 0
        ):
            return prefix
    pytest.skip("no mount namespace can be made here")


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


def test_a_full_dev_shm_is_an_error():
    """With the posix backing on 8 MB, batches that do not fit raise; no SIGBUS."""
    outcome = run(EIGHT_MEGABYTES, *in_a_small_dev_shm(), SHMLOADER_BACKING="posix")
    assert outcome[0] == "refused"
    assert int(outcome[1]) <= 2


def test_memfd_does_not_need_dev_shm():
    """The default backing is not bound by the size of /dev/shm."""
    assert run(EIGHT_MEGABYTES, *in_a_small_dev_shm(), SHMLOADER_BACKING="memfd") == ["8"]


@pytest.mark.thorough
def test_small_batches_on_a_small_dev_shm():
    """What fits into 8 MB runs on the posix backing, over many epochs."""
    script = "\nfor _ in range(5): whole_epoch()"
    assert run(script, *in_a_small_dev_shm(), SHMLOADER_BACKING="posix") == []


@pytest.mark.core(every=2)
@pytest.mark.parametrize("backing", ["memfd", "posix"])
def test_the_smallest_ring(backing):
    """One slot, one page: the whole epoch comes through."""
    run("whole_epoch(slots=1, ring_bytes=1 << 16)", SHMLOADER_BACKING=backing)


@pytest.fixture
def memory_group():
    """A control group of 600 MiB, of either version."""
    roots = [Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")]
    names = ["memory.limit_in_bytes", "memory.max"]
    for root, name in zip(roots, names, strict=True):
        group = root / f"shmloader-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / name).write_text(str(600 << 20))
        except OSError:
            continue
        yield group
        group.rmdir()
        return
    pytest.skip("no memory control group can be made here")


def test_a_control_group_is_an_error_not_a_kill(memory_group):
    """Workers that fill pages at the same time stop short of their control group's limit."""
    script = """
SAMPLE = torch.ones(1 << 20, dtype=torch.uint8)

def sample(index):
    return SAMPLE

with open(os.environ["GROUP"] + "/cgroup.procs", "w") as members:
    members.write(str(os.getpid()))
try:
    list(DataLoader(Computed(1200, sample), batch_size=300, num_workers=2, ring_bytes=2 << 30))
except OutOfSharedMemory as error:
    print("refused" if "MB are available" in str(error) else error)
"""

    assert ["refused"] == run(script, GROUP=str(memory_group))
