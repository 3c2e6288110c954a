"""
The pictures of terminals in docs/tuning.md: each command in a terminal of its own, its last screen.

    python -m docs.pictures.draw

`top` looks at a training that hangs on sample 4711, `report` and `tune` at one whose
samples take long. What was on the screen is drawn as it was, but for the folders of this machine.
"""

import contextlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from shmloader.cli.attach.trainers import find
from shmloader.cli.command import CommandError

_PICTURES = Path(__file__).parent
_CHECKOUT = _PICTURES.parents[1]

_COLUMNS, _ROWS = 110, 40
_LONGEST_S = 120.0

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


def main() -> None:
    """Write the pictures."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "hangs.py").write_text(_HANGS)
        (folder / "train.py").write_text(_WAITS)
        for title, screen in _screens(folder):
            path = _PICTURES / f"{title}.svg"
            path.write_text(_drawn(title, _without_folders(screen, folder).rstrip()))
            print(f"wrote {path}")


def _screens(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield each picture's name, and the screen with the command that was typed."""
    with _training(folder) as pid:
        yield "top", _screen(folder, f"shmloader top {pid}", "timeout --foreground -s INT 20 ")
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
        return any(worker.hangs for worker in find(pid).workers)
    except CommandError:  # it has no loader yet
        return False


def _environment() -> dict[str, str]:
    # The commands are typed by their names, and shown by them, as they would be elsewhere.
    beside = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return {**os.environ, "PATH": beside, "PYTHONPATH": str(_CHECKOUT), "TERM": "xterm-256color"}


def _screen(folder: Path, command: str, ended_by: str = "") -> str:
    """Run a command in a terminal of its own; what is on the screen when it ends."""
    typed = f"stty cols {_COLUMNS} rows {_ROWS}; {ended_by}{command}"
    shown = subprocess.check_output(
        ["script", "-qc", typed, os.devnull], cwd=folder, env=_environment(),
        timeout=_LONGEST_S, text=True,
    )  # fmt: skip
    last = shown.rpartition("\x1b[J")[2]  # `top` draws each look over the one before
    return f"\x1b[1m$ {command}\x1b[0m\n" + re.sub(r"\x1b\[\?25[hl]", "", last)


def _without_folders(screen: str, folder: Path) -> str:
    """Shorten what is particular to this machine: the folders of the training and of Python."""
    screen = re.sub(r"^Python v.*\n?", "", screen.replace("\r", ""), flags=re.MULTILINE)
    for path in (folder, sys.prefix, _CHECKOUT, Path.home()):
        screen = screen.replace(f"{path}/", "")
    return screen


def _drawn(title: str, screen: str) -> str:
    """Draw a screen as SVG, in a font that needs no download."""
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    console.print(Text.from_ansi(screen))
    picture = console.export_svg(title=f"shmloader: {title}", unique_id=title)
    picture = re.sub(r"\s*@font-face \{.*?\}", "", picture, flags=re.DOTALL)
    return re.sub(r"font-family: Fira Code, ", "font-family: ", picture)


if __name__ == "__main__":
    main()
