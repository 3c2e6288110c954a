"""`shmloader publish`: run a loader of the user's for trainings that subscribe to it."""

import argparse
import sys
from collections.abc import Sequence

from shmloader.cli.command import (
    CommandError,
    load_function,
    naming_the_component,
    parser_of,
    seconds,
)

_DESCRIPTION = (
    "Run a loader once for several training processes of this user on this machine, which receive "
    "its batches by shmloader.subscribe(NAME)."
)
_EPILOG = """\
examples:
  shmloader publish train_data:make_loader trials --subscribers 4
  shmloader publish train_data.py:make_loader trials --subscribers 4 --timeout 60

In each training process: for batch in shmloader.subscribe("trials"): ...

exit status: 0 when the last subscriber has left; 1 if it could not continue; 2 for wrong arguments.
"""


def main(arguments: Sequence[str]) -> int:
    """Publish until the last subscriber has left."""
    given = _parser().parse_args(arguments)
    with naming_the_component("shmloader publish"):
        import torch.utils.data  # only now: it takes seconds

        from shmloader import publishing

    target = given.make_loader
    loader = load_function(target)()
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise CommandError(
            f"{target} returned {type(loader).__name__}: have it return the DataLoader to publish"
        )
    print(f"publishing as {given.name!r} to {given.subscribers} subscribers", file=sys.stderr)
    try:
        publishing.publish(
            loader,
            given.name,
            subscribers=given.subscribers,
            epochs=given.epochs,
            timeout=given.timeout,
        )
    except (FileExistsError, PermissionError, TimeoutError, ValueError) as error:
        raise CommandError(str(error)) from error
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("publish", _DESCRIPTION, _EPILOG)
    parser.add_argument("make_loader", metavar="MODULE:FUNCTION", help="makes the loader")
    parser.add_argument(
        "name", metavar="NAME", help="the name that training processes subscribe to"
    )
    parser.add_argument("--subscribers", type=int, required=True, help="how many there will be")
    parser.add_argument("--epochs", type=int, help="how many to run at most")
    parser.add_argument(
        "--timeout",
        type=seconds(0.1),
        metavar="SECONDS",
        help="how long one subscriber may keep the others waiting before it is disconnected",
    )
    return parser
