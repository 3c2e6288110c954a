"""
The pictures of terminals in docs/tuning.md: each command in a terminal of its own, its last screen.

    python -m bench terminals

`top` and `stacks` look at a training that hangs on sample 4711, `report` and `tune` at one whose
samples take long. What was on the screen is drawn as it was, but for the folders of this machine.
"""

import contextlib
import io
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Callable, Iterator
from fcntl import ioctl
from pathlib import Path

from rich.console import Console
from rich.text import Text

from bench.question import Options, Question
from bench.report.machine import CHECKOUT
from shmloader.cli.attach.trainers import find
from shmloader.cli.command import CommandError

_PICTURES = CHECKOUT / "docs" / "pictures"

_COLUMNS, _ROWS = 110, 40
_LONGEST_S = 120.0
_LOOKED = "Ctrl-C ends this"  # below each look of `top`

_TRAINING = '''\
"""A training on photographs: its samples take a while, or one never comes."""

import time

import torch
from torch.utils.data import Dataset

from shmloader import DataLoader


class Photos(Dataset):
    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return self.read(index)

    def read(self, index):
        time.sleep(WAIT)
        return torch.zeros(3, 32, 32)


def make_loader():
    return DataLoader(Photos(), batch_size=16, num_workers=2)


def step(batch):
    time.sleep(0.008)


if __name__ == "__main__":
    loader = make_loader()
    for batch in loader:
        step(batch)
    print(loader.report())
'''
_HANGS = _TRAINING.replace("COUNT", "8000").replace("WAIT", "1000 if index == 4711 else 0.0005")
_WAITS = _TRAINING.replace("COUNT", "2000").replace("WAIT", "0.003")


def records(_: Options) -> Iterator[dict]:
    """Write the pictures, and yield a row for each."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hangs.py").write_text(_HANGS)
        (folder / "train.py").write_text(_WAITS)
        for title, screen in _screens(folder):
            path = _PICTURES / f"{title}.svg"
            text = Text.from_ansi(without_folders(screen, folder).rstrip())
            path.write_text(drawn(title, text))
            yield {"picture": str(path)}


def _screens(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each picture's name, and the screen with the command that was typed."""
    with _training(folder) as pid:
        yield "top", _screen(folder, f"shmloader top {pid}", _has_named)
        yield "stacks", _screen(folder, f"shmloader stacks {pid}")
    yield "report", _screen(folder, "python train.py")
    tune = "shmloader tune train:make_loader --step train:step --seconds 20"
    yield "tune", _screen(folder, tune)


@contextlib.contextmanager
def _training(folder: Path) -> Iterator[int]:
    """Run the training, and yield its process as soon as a worker of it hangs."""
    process = subprocess.Popen(["python", "hangs.py"], cwd=folder, env=_environment())
    deadline = time.monotonic() + _LONGEST_S
    try:
        while not _hangs(process.pid):
            if time.monotonic() > deadline or process.poll() is not None:
                sys.exit("the training that should hang does not")
            time.sleep(1)
        yield process.pid
    finally:
        process.kill()
        process.wait()


def _hangs(pid: int) -> bool:
    try:
        return bool(find(pid).hung())
    except CommandError:  # it has no loader yet
        return False


def _environment() -> dict[str, str]:
    # The commands are typed by their names, and shown by them, as they would be elsewhere.
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": beside, "PYTHONPATH": str(CHECKOUT), "TERM": "xterm-256color"}


def _has_named(shown: str) -> bool:
    """Returns True once a whole look of `top` names a worker that hangs."""
    return "hangs" in last_look(shown)


def _screen(folder: Path, command: str, is_over: Callable[[str], bool] | None = None) -> str:
    """Run a command in a terminal, to its end or until enough is shown; what is on the screen."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
    process = subprocess.Popen(
        shlex.split(command), cwd=folder, env=_environment(), stdin=theirs, stdout=theirs,
        stderr=theirs, start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    shown = ""
    deadline = time.monotonic() + _LONGEST_S
    try:
        while time.monotonic() < deadline and not (is_over and is_over(shown)):
            shown += os.read(ours, 65536).decode()
    except OSError:  # the command has ended, and the terminal with it
        pass
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(_LONGEST_S)
        os.close(ours)
    return f"\x1b[1m$ {command}\x1b[0m\n" + (last_look(shown) if is_over else shown)


def last_look(shown: str) -> str:
    """Return the last whole screen of those that were drawn over each other."""
    whole = shown[: shown.rfind(_LOOKED) + len(_LOOKED)] if _LOOKED in shown else ""
    return whole.rpartition("\x1b[J")[2]


def without_folders(screen: str, folder: Path) -> str:
    """Shorten what is particular to this machine: the folders of the training and of Python."""
    screen = re.sub(r"^Python v.*\n?", "", screen.replace("\r", ""), flags=re.MULTILINE)
    for path in (folder, sys.prefix, CHECKOUT, Path.home()):
        screen = screen.replace(f"{path}/", "")
    return screen


def drawn(title: str, screen: Text) -> str:
    """Draw a screen as SVG, in a font that needs no download."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(screen)
    picture = console.export_svg(title=f"shmloader: {title}", unique_id=title)
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    return re.sub(r"font-family: Fira Code, ", "font-family: ", picture)


QUESTION = Question(records)
