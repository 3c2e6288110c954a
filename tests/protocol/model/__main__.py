"""Print the shortest way to a mistake's fault: `python -m tests.protocol.model --trace NAME`."""

from __future__ import annotations

import argparse
import sys

from . import cases, spin


def main(arguments: list[str] | None = None) -> int:
    """
    Run the command line.

    Returns:
        The exit status.
    """
    runs = {mutation.flag: mutation.run for mutation in cases.MUTATIONS}
    parser = argparse.ArgumentParser(prog="python -m tests.protocol.model", description=__doc__)
    parser.add_argument("--trace", choices=runs, metavar="NAME", required=True)
    options = parser.parse_args(arguments)
    if not spin.is_here():
        print(spin.MISSING, file=sys.stderr)
        return 1
    print(spin.trace(runs[options.trace]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
