"""Programs that are started in every way, beside the same ones with torch's loader under spawn."""

import functools
import itertools
import os
import re
import subprocess
import sys
import zipfile

import pytest

from tests.helpers.programs import LONGEST_WAIT_S, search_path

LOADERS = {
    "torch": "from torch.utils.data import DataLoader; WAY = {'multiprocessing_context': 'spawn'}",
    "forkserver": "from shmloader import DataLoader; "
    "WAY = {'multiprocessing_context': 'forkserver'}",
    "spawn": "from shmloader import DataLoader; "
    "WAY = {'multiprocessing_context': 'spawn', 'preload': ('json',)}",
}

DATASET = """\
import os, sys, torch


class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, index):
        # Each in one write, even if nothing is buffered: others print at the same time.
        sys.stdout.write(f"sample {index} {__name__}\\n")
        sys.stderr.write(f"error {index}\\n")
        return torch.tensor(index)


"""

MAIN = """\
def main():
    for number in range(2):
        loader = DataLoader(Numbers(), num_workers=1, **WAY)
        sys.stdout.write(f"{sum(int(batch) for batch in loader)}\\n")  # at once, for two threads
        sys.stdout.flush()


if __name__ == "__main__":
    main()
"""


AT_A_FORK = "ignore:This process:DeprecationWarning"

# What multiprocessing says now and then of semaphores that torch's queues leave to it.
OF_TRACKER = re.compile(r"resource_tracker|^  warnings\.warn\(")


def start(folder, *command, text=None, **environment):
    """
    Run a program to its end.

    Returns:
        Its exit status, the lines that it printed, and those on stderr, both in no order.
    """
    done = subprocess.run(
        [sys.executable, *command],
        input=text,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": search_path(), **environment},
        timeout=4 * LONGEST_WAIT_S,  # it starts up to eight interpreters that import torch
        check=False,
    )
    errors = [line for line in done.stderr.splitlines() if not OF_TRACKER.search(line)]
    return done.returncode, sorted(done.stdout.splitlines()), sorted(errors)


@pytest.fixture(scope="module")
def beside_torch(tmp_path_factory):
    """Writes and launches a program with torch's loader, once, and with ours; returns both."""

    @functools.cache
    def outcome(way, launch):
        folder, head = tmp_path_factory.mktemp(way), f"{LOADERS[way]}\n{DATASET}"
        if way != "torch":
            return launch(folder, head, MAIN)
        # Each of its workers imports torch: a second epoch would print the same once more.
        status, lines, errors = launch(folder, head, MAIN.replace("range(2)", "range(1)"))
        return status, sorted(2 * lines), sorted(2 * errors)

    return lambda way, launch: (outcome("torch", launch), outcome(way, launch))


def as_script(folder, head, main, **environment):
    (folder / "program.py").write_text(head + main)
    return start(folder, "program.py", **environment)


def as_module(folder, head, main):
    package = folder / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text(head + main)
    return start(folder, "-m", "package.train")


def as_zip(folder, head, main):
    with zipfile.ZipFile(folder / "program.zip", "w") as archive:
        archive.writestr("numbers_of_zip.py", head)
        archive.writestr("__main__.py", f"from numbers_of_zip import *\n{main}")
    return start(folder, "program.zip")


def with_a_module(folder, head, main):
    (folder / "numbers_beside.py").write_text(head)
    return f"from numbers_beside import *\n{main}"


def as_stdin(folder, head, main):
    return start(folder, "-", text=with_a_module(folder, head, main))


def in_two_threads(folder, head, main):
    """Run it in two threads at once."""
    started = (
        "import threading; ts = [threading.Thread(target=main) for _ in range(2)]; "
        "[t.start() for t in ts]; [t.join() for t in ts]"
    )
    return as_script(folder, head, main.replace("    main()\n", f"    {started}\n"))


def in_a_process(method):
    """Run it in a process of multiprocessing that may have children."""

    def launch(folder, head, main):
        started = (
            f"import multiprocessing; p = multiprocessing.get_context({method!r})"
            ".Process(target=main); p.start(); p.join(); sys.exit(p.exitcode)"
        )
        main = main.replace("    main()\n", f"    {started}\n")
        return as_script(folder, head, main, PYTHONWARNINGS=AT_A_FORK)

    launch.__name__ = f"in a {method} process"
    return launch


def in_a_forked_child(folder, head, main):
    """Run it in a child, of a process that has run it itself."""
    forked = "main(); sys.stdout.flush(); c = os.fork(); main() if c == 0 else os.waitpid(c, 0)"
    main = main.replace("    main()\n", f"    {forked}\n")
    return as_script(folder, head, main, PYTHONWARNINGS=AT_A_FORK)


# What starts the cells of a notebook: their __main__ is a module without a file.
KERNEL = """\
import sys, types

kernel = sys.modules["__main__"]
shell = sys.modules["__main__"] = types.ModuleType("__main__")
with open("cells") as cells:
    for cell in cells.read().split("# cell"):
        exec(compile(cell, "<cell>", "exec"), shell.__dict__)
"""


def as_cells(folder, cells):
    (folder / "kernel.py").write_text(KERNEL)
    (folder / "cells").write_text(cells)
    return start(folder, "kernel.py")


def in_a_notebook(folder, head, main):
    """Run it in cells, with a dataset of a module."""
    cells = with_a_module(folder, head, main).replace("def main", "# cell\ndef main")
    return as_cells(folder, cells)


LAUNCHES = [
    as_script,
    as_module,
    as_zip,
    in_a_notebook,
    in_two_threads,
    in_a_process("fork"),
    in_a_process("spawn"),
    in_a_forked_child,
]


def dealt(values):
    """
    Give each value one of our two ways in turn.

    They differ in what a server imports first; all that follows is the same.
    """
    return list(zip(itertools.cycle(["forkserver", "spawn"]), values, strict=False))


def name_of(value):
    return getattr(value, "__name__", value)


@pytest.mark.thorough
@pytest.mark.timeout(300)  # a busy machine takes a minute for two programs that each start eight
@pytest.mark.parametrize(("way", "launch"), dealt(LAUNCHES), ids=name_of)
def test_program(beside_torch, way, launch):
    """It prints the same, in trainer and workers, and ends the same."""
    expected, actual = beside_torch(way, launch)

    assert expected == actual
    assert 0 == actual[0]


def without_guard(folder, head, main):
    return as_script(folder, head, main.replace('if __name__ == "__main__":\n    main', "main"))


def as_daemon(folder, head, main):
    """Run it in a daemon, which may not have children."""
    main = main.replace(
        "    main()\n",
        "    import multiprocessing\n"
        "    p = multiprocessing.get_context('fork').Process(target=main, daemon=True)\n"
        "    p.start(); p.join()\n",
    )
    return as_script(folder, head, main)


def with_its_class_in_a_cell(folder, head, main):
    return as_cells(folder, f"{head}# cell\n{main}")


ERRORS = {
    as_stdin: "FileNotFoundError: [Errno 2] No such file or directory",
    without_guard: "An attempt has been made to start a new process before the",
    as_daemon: "AssertionError: daemonic processes are not allowed to have children",
    with_its_class_in_a_cell: "AttributeError: Can't get attribute 'Numbers' on <module",
}


@pytest.mark.core(every=4)
@pytest.mark.parametrize(("way", "launch"), dealt(ERRORS), ids=name_of)
def test_program_that_may_not_start_workers(beside_torch, way, launch):
    """The error is torch's."""
    said = ERRORS[launch]
    for status, _, errors in beside_torch(way, launch):
        assert (launch is not as_daemon) == (status != 0)
        assert any(said in line for line in errors), errors


@pytest.mark.thorough
def test_default_start_method(tmp_path):
    """What set_start_method() chose, or Python from 3.14 on, has a server too."""
    head = f"from shmloader import DataLoader; WAY = {{}}\n{DATASET}"
    main = MAIN.replace(
        "    main()\n",
        "    import multiprocessing; multiprocessing.set_start_method('forkserver'); main()\n"
        "    from shmloader.processes.servers import servers; print(len(servers.processes()))\n",
    )
    status, lines, _ = as_script(tmp_path, head, main)

    assert (0, "1") == (status, lines[0])


DESCRIPTORS = """
class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        found = set()
        for each in os.listdir("/proc/self/fd"):
            if os.path.exists(f"/proc/self/fd/{each}"):
                found.add(os.readlink(f"/proc/self/fd/{each}"))
        print("secret", any("secret" in each for each in found))
        return torch.tensor(index)


if __name__ == "__main__":
    secret = os.open("secret", os.O_CREAT)
    os.set_inheritable(secret, True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["forkserver", "spawn"])
def test_descriptors_of_the_trainer(tmp_path, way):
    """Workers have none that they were not given, even if it is inheritable."""
    status, lines, errors = as_script(
        tmp_path, f"{LOADERS[way]}\nimport os, sys, torch\n{DESCRIPTORS}", MAIN
    )

    assert (0, []) == (status, errors)
    assert {"secret False", "1"} == set(lines)
