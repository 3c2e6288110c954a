"""`shmloader trace`: what the workers and the trainer of a training did lately, as a file."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from shmloader.cli.attach.segments import layout
from shmloader.cli.attach.trainers import find
from shmloader.cli.command import CommandError, parser_of, require_folder_of
from shmloader.views.chrome_trace import NothingToTrace, Traced, write_trace

_EPILOG = """\
example:
  shmloader trace 4711 -o trace.json   # to open in https://ui.perfetto.dev

exit status: 0 if the file was written; 1 if there is no such process, or its
loaders have returned no batch yet; 2 for wrong options.
"""


def main(arguments: Sequence[str]) -> int:
    """Write a trace of a running training, and return the exit status."""
    chosen = _parser().parse_args(arguments)
    path: Path = chosen.output
    require_folder_of(path)
    trainer = find(chosen.pid)
    traced = [Traced(each.loader, each.label, each.records) for each in trainer.loaders]
    try:
        batches = write_trace(path, traced, layout())
    except BrokenPipeError:  # such as `-o /dev/stdout | head`, whose reader has seen enough
        return 0
    except (NothingToTrace, OSError) as error:
        raise CommandError(f"no trace of process {chosen.pid} was written: {error}") from None
    # Beside the trace, not in it, if that goes to standard output.
    where = sys.stdout if path.is_file() else sys.stderr
    print(f"{path}: the last {batches} batches; open it in https://ui.perfetto.dev", file=where)
    return 0


def _parser() -> argparse.ArgumentParser:
    description = (
        "Write a trace of what a running training process and its workers did for the last batches."
    )
    parser = parser_of("trace", description, _EPILOG)
    parser.add_argument("pid", type=int, help="the training process")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="PATH", help="the JSON file to write"
    )
    return parser
