"""`shmloader doctor` on machines that are made up, on a crippled process, and here."""

import fcntl
import json
import os
import resource
import subprocess
import sys

import pytest
import torch

import shmloader
from shmloader.cli import doctor
from shmloader.cli.doctor import open_files, processes, shared_memory
from shmloader.cli.doctor.examination import SAMPLES, trial
from shmloader.cli.doctor.finding import Finding
from shmloader.cli.doctor.machine import Machine
from shmloader.memory import groups
from tests.helpers.datasets import Computed
from tests.helpers.programs import search_path
from tests.helpers.threads import named_threads
from tests.helpers.warned import recorded

MAX, QUOTA, PERIOD = "/a/cpu.max", "/a/cpu.cfs_quota_us", "/a/cpu.cfs_period_us"
HUGE = "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
RELEASE = "/proc/sys/kernel/osrelease"
STATUS = "/proc/self/status"


class MadeUp(Machine):
    """A machine that a test makes up: files by path, limits, and counts of cores."""

    def __init__(self, files=(), limits=(), cores=(8, 8), space=None, folders=()):
        self._files, self._limits = dict(files), dict(limits)
        self._cores, self._space, self._folders = cores, space, [*folders]

    def read(self, path):
        return self._files.get(path, "")

    def limit(self, which):
        return self._limits.get(which)

    def cores(self):
        return self._cores[0]

    def affinity(self):
        return self._cores[1]

    def folders(self, controller):
        return self._folders

    def space(self, folder):
        return self._space


NEVER = "always within_size advise [never] deny force"


def huge_pages(setting, release, status=""):
    return MadeUp({HUGE: setting, RELEASE: release, STATUS: status})


# A check, the machine that it examines, the verdict, and words of what is found or of the remedy.
CHECKS = [
    # The least of affinity and quotas counts, of both versions of control groups.
    (processes.cores, MadeUp(), "ok", "8 of 8"),
    (processes.cores, MadeUp(cores=(64, 2)), "note", "usable (2), not for os.cpu_count()"),
    (processes.cores, MadeUp(cores=(1, 1)), "note", "num_workers=1"),
    (processes.cores, MadeUp({MAX: "max 100000"}, folders=["/a"]), "ok", "8 of 8"),
    (processes.cores, MadeUp({MAX: "1600000 100000"}, folders=["/a"]), "ok", "8 of 8"),
    (
        processes.cores,
        MadeUp({MAX: "max 100000", "/a/b/cpu.max": "150000 100000"}, folders=["/a", "/a/b"]),
        "note",
        "quota: the time of 1.5",
    ),
    (
        processes.cores,
        MadeUp({QUOTA: "300000", PERIOD: "100000"}, folders=["/a"]),
        "note",
        "3 of 8 may be used",
    ),
    (processes.cores, MadeUp({QUOTA: "-1", PERIOD: "100000"}, folders=["/a"]), "ok", "8 of 8"),
    # Huge pages come if the kernel takes the explicit request, or gives them to all.
    (shared_memory.huge_pages, huge_pages(NEVER, "6.18.44-x", "THP_enabled:\t1"), "ok", ""),
    (shared_memory.huge_pages, huge_pages(NEVER, "5.15.0-91", "THP_enabled:\t1"), "note", ""),
    (shared_memory.huge_pages, huge_pages("[always] never", "5.15.0-91"), "ok", ""),
    (shared_memory.huge_pages, huge_pages("never [deny] force", "6.18.44-x"), "note", ""),
    (shared_memory.huge_pages, huge_pages(NEVER, "6.18.44-x", "THP_enabled:\t0"), "note", ""),
    (shared_memory.huge_pages, huge_pages("", "6.18.44-x"), "note", ""),
    (shared_memory.huge_pages, huge_pages(NEVER, "6.1"), "ok", ""),
    # Few descriptors are noted, and too few for a loader are a problem.
    (processes.descriptors, MadeUp(), "ok", ""),
    (processes.descriptors, MadeUp(limits={resource.RLIMIT_NOFILE: 1024}), "ok", ""),
    (processes.descriptors, MadeUp(limits={resource.RLIMIT_NOFILE: 256}), "note", ""),
    (processes.descriptors, MadeUp(limits={resource.RLIMIT_NOFILE: 32}), "problem", ""),
]


@pytest.mark.parametrize(("check", "machine", "verdict", "said"), CHECKS)
def test_machines_that_are_made_up(check, machine, verdict, said):
    """Each check notes what it should, and says what it is or what to do."""
    found = check(machine)

    assert verdict == found.verdict
    assert said in f"{found.fact} {found.remedy}"


@pytest.fixture
def container(monkeypatch, tmp_path):
    """Returns a function that puts this process into a made-up group with a limit in bytes."""

    def put(limit, used=0, machine_kb=64_000_000):
        proc, group = tmp_path / "proc", tmp_path / "cgroup"
        (proc / "self").mkdir(parents=True)
        group.mkdir()
        (proc / "meminfo").write_text(
            f"MemTotal: {machine_kb} kB\nMemAvailable: {machine_kb} kB\nSwapFree: 0 kB\n"
        )
        mount = f"30 23 0:26 / {group} rw - cgroup2 cgroup2 rw\n"
        (proc / "self" / "mountinfo").write_text(mount)
        (proc / "self" / "cgroup").write_text("0::/\n")
        (group / "memory.max").write_text(str(limit))
        (group / "memory.current").write_text(str(used))
        monkeypatch.setattr(groups, "PROC", str(proc))

    return put


@pytest.mark.parametrize(
    ("limit", "used", "verdict"),
    [
        ("max", 0, "ok"),
        (64_000_000, 0, "problem"),
        (4_000_000_000, 3_990_000_000, "problem"),
        (512_000_000, 0, "note"),
    ],
)
def test_memory(container, limit, used, verdict):
    """What is left below a limit decides, and the limit is named."""
    container(limit, used)
    found = shared_memory.memory()

    assert verdict == found.verdict
    assert bool(found.remedy) == (verdict != "ok")
    assert ("below the limit of" in found.fact) == (limit != "max")


def test_memory_of_an_unknown_machine(monkeypatch, tmp_path):
    """Without /proc nothing is known, and that is said."""
    monkeypatch.setattr(groups, "PROC", str(tmp_path))

    assert "note" == shared_memory.memory().verdict


def forbidden(*_):
    raise PermissionError(1, "Operation not permitted")


def test_kind_of_object(monkeypatch):
    """memfd is right; what is used instead, or why it cannot be made, is told with the remedy."""
    found = [shared_memory.object_kind()]
    monkeypatch.setenv("SHMLOADER_BACKING", "posix")
    found.append(shared_memory.object_kind())
    monkeypatch.setenv("SHMLOADER_BACKING", "paper")
    found.append(shared_memory.object_kind())
    monkeypatch.setattr(os, "memfd_create", forbidden)
    monkeypatch.setenv("SHMLOADER_BACKING", "memfd")
    found.append(shared_memory.object_kind())
    monkeypatch.delenv("SHMLOADER_BACKING")
    found.append(shared_memory.object_kind())
    monkeypatch.delattr(os, "memfd_create")
    found.append(shared_memory.object_kind())

    verdicts = ["ok", "note", "problem", "problem", "note", "note"]
    assert verdicts == [each.verdict for each in found]
    assert "unset SHMLOADER_BACKING" == found[1].remedy
    assert "choose one of memfd, posix" in found[2].fact
    assert "seccomp" in found[3].remedy
    assert "allow memfd_create" in found[4].remedy
    assert "conda" in found[5].remedy


def test_object_that_cannot_be_sealed(monkeypatch):
    """That seals are refused is said."""
    monkeypatch.setattr(fcntl, "fcntl", forbidden)

    found = shared_memory.object_kind()

    assert ("note", True) == (found.verdict, found.fact.endswith("they cannot be sealed"))


@pytest.mark.parametrize(
    ("backing", "space", "verdict"),
    [
        ("memfd", (8 << 30, 8 << 30), "ok"),
        ("memfd", (64 << 20, 64 << 20), "note"),
        ("memfd", None, "note"),
        ("posix", (8 << 30, 8 << 30), "ok"),
        ("posix", (8 << 30, 64 << 20), "problem"),
        ("posix", None, "problem"),
        ("paper", (64 << 20, 64 << 20), "note"),
    ],
)
def test_dev_shm(monkeypatch, backing, space, verdict):
    """/dev/shm is a problem only if segments lie in it."""
    monkeypatch.setenv("SHMLOADER_BACKING", backing)

    assert verdict == shared_memory.dev_shm(MadeUp(space=space)).verdict


class Reads(torch.utils.data.Dataset):
    """Reads from a file that was opened before the fork, or that the worker opens."""

    def __init__(self, path, is_shared):
        self.path = path
        self.file = open(path, "rb", buffering=0) if is_shared else None  # noqa: SIM115
        if self.file is not None:
            self.file.read(1)

    def __len__(self):
        return 100

    def __getitem__(self, index):
        self.file = self.file or open(self.path, "rb", buffering=0)  # noqa: SIM115
        return self.file.read(1)[0]


@pytest.mark.parametrize(("is_shared", "verdict"), [(True, "note"), (False, "ok")])
def test_files_whose_place_is_shared(tmp_path, is_shared, verdict):
    """A file that was opened before workers were forked is named, with both processes."""
    path = tmp_path / "samples"
    path.write_bytes(bytes(1000))
    dataset = Reads(path, is_shared)
    with shmloader.DataLoader(dataset, num_workers=1, multiprocessing_context="fork") as loader:
        iterator = iter(loader)
        next(iterator)
        worker = iterator._workers[0].pid
        found = open_files.shared_files([(os.getpid(), [worker])])
    if is_shared:
        dataset.file.close()

    assert verdict == found.verdict
    if is_shared:
        assert f"worker {worker} shares the file position in {path}" in found.fact
    assert "ok" == open_files.shared_files([]).verdict


@pytest.mark.core(first=1)
@pytest.mark.parametrize(
    ("method", "thread", "verdict"),
    [("fork", "polars-0", "note"), ("fork", "other", "ok"), ("forkserver", "polars-0", "ok")],
)
def test_threads_that_forked_workers_lack(method, thread, verdict):
    """They are named, with the process, if workers were forked from it."""
    options = {"num_workers": 1, "multiprocessing_context": method}
    with named_threads(thread), recorded(), shmloader.DataLoader(SAMPLES, **options) as loader:
        iterator = iter(loader)
        next(iterator)
        found = processes.native_threads([(os.getpid(), [iterator._workers[0].pid])])

    assert verdict == found.verdict
    if verdict == "note":
        assert f"process {os.getpid()}, which forks workers, has threads of polars" in found.fact
    assert "ok" == processes.native_threads([]).verdict


def test_an_affinity_of_openmp_has_its_reason(monkeypatch):
    """The check of cores names the setting, and says how to lift it."""
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    found = processes.cores(MadeUp(cores=(64, 1)))

    assert "affinity: 1, by OMP_PROC_BIND=close" in found.fact
    assert "OMP_PROC_BIND=false" in found.remedy
    assert "ok" == processes.cores(MadeUp()).verdict


def fail(index):
    raise OSError(5, "disk on fire")


@pytest.mark.thorough
def test_the_loader_that_runs():
    """Right batches are ok; wrong ones, and errors, are a problem with the numbers or the text."""
    swapped = SAMPLES.copy()
    swapped[5] = swapped[6]
    right, wrong, failed = trial(), trial(swapped), trial(Computed(len(SAMPLES), fail))

    assert ["ok", "problem", "problem"] == [each.verdict for each in (right, wrong, failed)]
    assert "16 of 16 batches of 2 workers" in right.fact
    assert "15 of 16" in wrong.fact
    assert "disk on fire" in failed.fact


def found_here(before=""):
    """Run `doctor --json` in a process of its own, after a line of the shell."""
    line = f"{before}\nexec {sys.executable} -m shmloader doctor --json"
    ended = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "PYTHONPATH": search_path(), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert "" == ended.stderr
    said = json.loads(ended.stdout)
    findings = {each["name"]: Finding(**each) for each in said["findings"]}
    assert ended.returncode == bool(said["problems"])
    assert said["problems"] == [each.verdict for each in findings.values()].count("problem")
    assert said["notes"] == [each.verdict for each in findings.values()].count("note")
    assert {"shmloader", "problems", "notes", "findings"} == said.keys()
    return findings


@pytest.mark.thorough
def test_doctor_runs_a_loader_here():
    """The whole examination ends with a loader that delivered, and each finding is complete."""
    found = found_here()

    assert 12 == len(found)
    assert "ok" == [*found.values()][-1].verdict
    assert all(bool(each.remedy) == (each.verdict != "ok") for each in found.values())


@pytest.mark.thorough
def test_limits_of_a_process_are_seen():
    """`ulimit -v` and `-n` of the process are noted with the limit, and the loader still runs."""
    found = found_here("ulimit -v 8000000; ulimit -n 256")

    assert "`ulimit -v` limits addresses to 8192.0 MB" in found["ulimit -v, -f"].fact
    assert ["note", "note", "ok"] == [
        found[name].verdict for name in ("ulimit -v, -f", "descriptors", "a loader")
    ]


def test_a_problem_is_status_1(capsys):
    """A problem makes the exit status 1, in text and in JSON, and its remedy is told."""
    findings = [Finding("a", "ok", "well"), Finding("b", "problem", "ill", "take --this-option")]

    assert [1, 1] == [doctor.tell(findings, as_json) for as_json in (False, True)]
    assert "-> take --this-option" in capsys.readouterr().out
    assert 0 == doctor.tell([Finding("c", "note", "well", "rest")], as_json=False)


def test_scarce_memory_spares_the_loader(container, capsys):
    """In a container of 64 MB no loader is started, which the kernel might kill."""
    container(64_000_000)
    status = doctor.main(["--json"])
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)["findings"]}

    assert 1 == status
    assert "problem" == found["memory"]["verdict"]
    assert "was not tried" == found["a loader"]["fact"]
