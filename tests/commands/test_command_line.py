"""The one command: its table, its help, and its exit codes."""

import json
import os
import re
import subprocess
import sys

import pytest

from shmloader import DataLoader, cli
from tests.helpers.programs import search_path


def run(*arguments, script=None, folder=None, stdout=subprocess.PIPE):
    """Run the command in a process of its own."""
    program = ["-c", script] if script else ["-m", "shmloader"]
    return subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=folder,
        env={"PYTHONPATH": search_path(), "PATH": "/usr/bin:/bin"},
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        timeout=100,
    )


WITHOUT_TORCH = """
import json, sys

from shmloader.cli import main

statuses = []
for arguments in json.loads(sys.argv[1]):
    try:
        statuses.append(main(arguments))
    except SystemExit as end:
        statuses.append(end.code)
print(json.dumps([statuses, "torch" in sys.modules]))
"""


@pytest.mark.thorough
def test_help_and_refusals_do_without_torch():
    """Importing torch takes seconds; what explains or refuses a command does not wait for it."""
    explaining = [["--help"], ["--version"], *([name, "--help"] for name in cli.COMMANDS)]
    refusing = [["nothing"], *([name, "--nothing"] for name in cli.COMMANDS)]
    said = run(json.dumps(explaining + refusing), script=WITHOUT_TORCH)
    statuses, has_torch = json.loads(said.stdout.splitlines()[-1])

    assert [0] * len(explaining) + [2] * len(refusing) == statuses, said.stderr
    assert not has_torch


@pytest.mark.thorough
def test_run_ends_with_its_programs_status(tmp_path):
    """The program that `run` becomes has its own arguments, and its status is the command's."""
    (tmp_path / "program.py").write_text("import sys\nprint(sys.argv[1:])\nsys.exit(7)\n")
    ended = run("run", "program.py", "--a", "b", folder=tmp_path)

    assert (7, "['--a', 'b']\n") == (ended.returncode, ended.stdout)


def test_version_names_what_behaviour_depends_on():
    """--version has the versions of this package, torch, numpy and Python."""
    said = run("--version")

    assert 0 == said.returncode
    assert said.stdout == cli.version_text() + "\n"
    assert {"shmloader", "(torch", "numpy", "Python"} <= {*said.stdout.split()}


# For each command its options that take a value, and a wrong one; ANY: none is, but that it lacks.
ANY = None
WRONG_VALUES = {
    "run": {
        "--slots": "0",
        "--slot-bytes": "0",
        "--ring-bytes": "1",
        "--restarts": "-1",
        "--min-workers": "0",
        "--max-workers": "0",
        "--nice": "30",
        "--worker-bytes": "0",
        "--assignment": "fast",
        "--device": "coda",
        "--seed-by": "sample",
        "--fetch-threads": "x",
        "--preload": "a b",
    },
    "doctor": {},
    "top": {"--interval": "0.0009"},
    "trace": {"--output": ANY},
    "tune": {"--step": "os", "--step-seconds": "-1", "--seconds": "0"},
    "publish": {"--subscribers": "x", "--epochs": "x", "--timeout": "0"},
}
# What each command must be given besides.
GIVEN = {"run": ["-m", "this"], "trace": ["1"], "tune": ["json:loads"]}
WRONG_ARGUMENTS = [
    ["nothing"],
    ["--nothing"],
    *([name, "--nothing"] for name in cli.COMMANDS),
    ["run"],
    ["run", "--"],
    ["run", "--slot-bytes", "2000000", "--ring-bytes", "1000000", "-m", "this"],
    ["run", "--fetch-threads", "2", "--restarts", "1", "-m", "this"],
    ["top", "x"],
    ["top", "--interval", "1e300"],
    ["trace", "1"],
    ["tune"],
    ["tune", "os"],
]
WRONG_ARGUMENTS += [
    [name, option, value, *GIVEN.get(name, [])]
    if value is not ANY
    else [name, *GIVEN.get(name, []), option]
    for name, options in WRONG_VALUES.items()
    for option, value in options.items()
]


def status_of(arguments):
    """Run a command in this process, which it must not become another one of."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "execve", lambda *_: pytest.fail("the program was run"))
        try:
            return cli.main(arguments)
        except SystemExit as end:
            return end.code


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS, ids=" ".join)
def test_wrong_arguments_are_status_2(arguments, capsys):
    """Wrong arguments end with 2 and a word on stderr, whatever reads them."""
    assert 2 == status_of(arguments)
    assert capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_explains_itself(name, capsys):
    """
    The help of a command shows how it is called, examples, and its exit status.

    Of its options that take a value, the test above tries each.
    """
    status, said = status_of([name, "--help"]), capsys.readouterr().out

    assert 0 == status
    assert f"shmloader {name}" in said
    assert "xample" in said and "tatus" in said
    assert {*re.findall(r"(--[a-z-]+) [A-Z]", said)} == {*WRONG_VALUES[name]}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["top", "99999999"], "there is no process 99999999"),
        (["trace", "1", "-o", "/nonexist/x.json"], "there is no directory /nonexist "),
        (["run", "nothing.py"], "there is no file nothing.py"),
        (
            ["publish", "time:localtime", "trials", "--subscribers", "1"],
            "time:localtime returned struct_time: have it return the DataLoader",
        ),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_what_is_not_there_is_said_first(arguments, said, capsys):
    """The process, the directory or the file is named, whatever else the command would need."""
    assert 1 == status_of(arguments)
    assert f"shmloader {arguments[0]}: {said}" in capsys.readouterr().err


def interrupted(*_):
    raise KeyboardInterrupt


def test_ctrl_c_is_status_130(monkeypatch):
    """An interrupt ends with 130 and no traceback."""
    monkeypatch.setattr("shmloader.cli.doctor.main", interrupted)

    assert 130 == cli.main(["doctor"])


def unwritten(name):
    return f"{name}: its output cannot be written: No space left on device\n"


@pytest.mark.core(first=1)
@pytest.mark.parametrize("arguments", ["--help", "doctor", "top --once", "top --once --json"])
def test_output_that_cannot_be_written_is_one_sentence(arguments):
    """On a full disk a command says so and exits with 1, whatever it has to say."""
    with open("/dev/full", "w") as full, DataLoader(range(8), num_workers=1) as loader:
        iterator = iter(loader)  # what `top` shows
        said = run(*arguments.split(), stdout=full)
        del iterator
    name = "shmloader" if arguments == "--help" else f"shmloader {arguments.split()[0]}"

    assert (1, unwritten(name)) == (said.returncode, said.stderr)


@pytest.mark.parametrize("arguments", [["--version"], *([name, "-h"] for name in cli.COMMANDS)])
def test_an_explanation_that_cannot_be_written_is_one_too(arguments, monkeypatch, capsys):
    """The same of what each command says of itself."""
    with open("/dev/full", "w") as full, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", full)
        status = status_of(arguments)
    name = " ".join(["shmloader", *arguments[:-1]])

    assert (1, unwritten(name)) == (status, capsys.readouterr().err)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command",
    ["doctor", "top --once", "trace PID -o /dev/stdout", "--help", "tune --help"],
)
def test_a_reader_that_is_gone(command):
    """What has seen enough, as `head` has, is no error of any command, and nothing is said."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe, DataLoader(range(8), num_workers=1) as loader:
        iterator = iter(loader)
        next(iterator)
        said = run(*command.replace("PID", str(os.getpid())).split(), stdout=pipe)
        del iterator

    assert (0, "") == (said.returncode, said.stderr)
