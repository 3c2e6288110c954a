"""`shmloader stacks`: where in its code a worker hangs, as py-spy sees it."""

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from shmloader.cli.attach.trainers import LiveTrainer, find
from shmloader.cli.command import CommandError, parser_of, seconds
from shmloader.views.live import HANGS_AFTER_S, LiveWorker

_FORBIDDEN = re.compile("permi(ssion|tted)", re.IGNORECASE)  # EACCES or EPERM, in py-spy's words
_REMEDY = (
    "\nOnly root may look into a process that it did not start, unless sysctl "
    "kernel.yama.ptrace_scope is 0: run this with sudo; in a container, with docker run "
    "--cap-add SYS_PTRACE"
)
_LONGEST_S = 60.0  # py-spy stops the process while it looks; it takes milliseconds

_EPILOG = """\
examples:
  shmloader stacks 4711
  shmloader stacks 4711 --all

exit status: 0 if a stack was printed; 1 if no worker hangs, or py-spy could
not look; 2 for wrong options.
"""


def main(arguments: Sequence[str]) -> int:
    """Print the stacks of a training's workers, and return the exit status."""
    chosen = _parser().parse_args(arguments)
    trainer = find(chosen.pid, chosen.hangs_after)
    workers = _living(trainer) if chosen.all else trainer.hung()
    if not workers:
        print(f"no worker of process {chosen.pid} hangs; --all prints the stacks of all workers")
        return 1
    program = _py_spy()
    for worker in workers:
        at = f" at index {worker.index} of the dataset" if worker.index is not None else ""
        print(f"worker {worker.worker}, process {worker.pid}: {worker.state}{at}")
        print(_dump(program, worker))
    return 0


def _parser() -> argparse.ArgumentParser:
    description = "Print the Python stacks of a training process's hung workers, with py-spy."
    parser = parser_of("stacks", description, _EPILOG)
    parser.add_argument("pid", type=int, help="the training process")
    parser.add_argument("--all", action="store_true", help="all workers, not only those that hang")
    parser.add_argument(
        "--hangs-after",
        type=seconds(1e-3),
        default=HANGS_AFTER_S,
        metavar="S",
        help="as for `shmloader top` (default: %(default)s)",
    )
    return parser


def _py_spy() -> str:
    beside = str(Path(sys.executable).parent)
    program = shutil.which("py-spy") or shutil.which("py-spy", path=beside)
    if program is None:
        raise CommandError("py-spy, which reads the stacks, is not installed: pip install py-spy")
    return program


def _living(trainer: LiveTrainer) -> list[LiveWorker]:
    there = (worker for worker in trainer.workers if worker.pid is not None)
    return [worker for worker in there if worker.state != "gone"]


def _dump(program: str, worker: LiveWorker) -> str:
    command = [program, "dump", "--pid", str(worker.pid)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LONGEST_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CommandError(f"py-spy failed: {error}") from None
    if done.returncode == 0:
        return done.stdout
    # Behind its words stands a backtrace of its own code.
    reason = done.stderr.partition("Stack backtrace")[0].strip()
    if _FORBIDDEN.search(reason):
        reason += _REMEDY
    raise CommandError(f"py-spy failed: {reason or f'exit status {done.returncode}'}")
