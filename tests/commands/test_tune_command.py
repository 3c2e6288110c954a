"""`shmloader tune`: the options for a loader of the user's, from the shell."""

import pytest

from shmloader.cli import main

PROGRAM = """
import torch
from torch.utils.data import DataLoader

STEPS = []


def make_loader():
    return DataLoader(torch.arange(800).reshape(400, 2), batch_size=4, num_workers=1)


def step(batch):
    STEPS.append(len(batch))


def nothing():
    return 1


def train():
    raise RuntimeError("a whole training")


def broken(batch):
    raise ValueError("the step's own")
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A module of the user's in this folder."""
    name = f"tuned_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["function", "seconds"])
def test_a_line_to_paste_is_printed(program, step, capsys):
    """The options come first on stdout, the progress goes to stderr."""
    more = ["--step", f"{program}:step"] if step == "function" else ["--step-seconds", "0.001"]
    status = main(["tune", f"{program}:make_loader", "--seconds", "1", *more])
    output, errors = capsys.readouterr()

    assert 0 == status
    assert output.startswith(("num_workers=", "prefetch_factor=", "assignment=", "no option "))
    assert "batches/s" in output
    assert f"importing {program}, to call make_loader()" == errors.splitlines()[0]
    assert "running 1 worker, prefetch_factor=2" in errors.splitlines()


@pytest.mark.parametrize("file", [".py", ""])
def test_what_will_be_called_is_said_before(program, file, capsys):
    """A program that is named by mistake is heard of before it runs."""
    with pytest.raises(RuntimeError, match="a whole training"):
        main(["tune", f"{program}{file}:train"])

    assert f"importing {program}, to call train()\n" == capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "text"),
    [
        (["nowhere:make"], 1, "there is no module nowhere"),
        (["nowhere.at_all:make"], 1, "there is no module nowhere.at_all"),
        (["{}:missing"], 1, "has no function missing"),
        (["{}:STEPS"], 1, "has no function STEPS"),
        (["{}"], 2, "write it as module:function"),
        (["{}:"], 2, "write it as module:function"),
        (["{}:nothing"], 1, "make_loader() returned int, not a torch DataLoader"),
        (["{}:make_loader", "--step", "{}:step", "--step-seconds", "1"], 2, "not allowed with"),
        (["{}:make_loader", "--step-seconds", "nan"], 2, "nan is not a number of seconds from 0"),
        (["{}:make_loader", "--seconds", "inf"], 2, "inf is not a number of seconds from 1"),
        ([], 2, "required: MODULE:FUNCTION"),
    ],
)
def test_mistakes_are_said(program, arguments, status, text, capsys):
    """A function that is not there, no loader, and two steps are errors in one sentence."""
    try:
        found = main(["tune", *(each.format(program) for each in arguments)])
    except SystemExit as end:
        found = end.code

    assert status == found
    assert text in capsys.readouterr().err


def test_an_error_of_the_step_keeps_its_traceback(program):
    """Whoever wrote it wants the line, whatever the error's type is."""
    with pytest.raises(ValueError, match="the step's own"):
        main(["tune", f"{program}:make_loader", "--step", f"{program}:broken", "--seconds", "1"])
