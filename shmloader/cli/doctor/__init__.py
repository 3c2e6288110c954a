"""`shmloader doctor`: looks at what a loader needs of the machine, and says what to change."""

import argparse
import json
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version

from shmloader.cli.command import parser_of
from shmloader.cli.doctor.finding import Finding

_EPILOG = """\
verdicts:
  ok       nothing to do
  note     works, but costs something, or may surprise
  problem  loaders fail, or will at the usual sizes

examples:
  shmloader doctor
  shmloader doctor --json > machine.json   # to attach to a report

exit status: 0; 1 if there is a problem; 2 for wrong options.
It changes nothing, and takes about two seconds.
"""
_COLUMNS = 100


def main(arguments: Sequence[str]) -> int:
    """Look at this machine, tell what was found, and return the exit status."""
    chosen = _parser().parse_args(arguments)
    # Only now: they import torch, which takes seconds.
    from shmloader.cli.doctor.examination import examine
    from shmloader.cli.doctor.machine import Machine

    return tell(examine(Machine()), as_json=chosen.json)


def _parser() -> argparse.ArgumentParser:
    description = (
        "Check what a loader needs of this machine, as this process sees it. Run it where the "
        "training job runs: in the same container and with the same limits."
    )
    parser = parser_of("doctor", description, _EPILOG)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    return parser


def tell(findings: Iterable[Finding], as_json: bool) -> int:
    """Print findings, as text when each is made or as JSON at the end; 1 if one is a problem."""
    found = []
    for finding in findings:
        found.append(finding)
        if not as_json:
            print("\n".join(lines(finding)), flush=True)  # a kill by a later check leaves it
    problems = sum(finding.verdict == "problem" for finding in found)
    notes = sum(finding.verdict == "note" for finding in found)
    if as_json:
        counts = {"problems": problems, "notes": notes}
        listed = [finding._asdict() for finding in found]
        record = {"shmloader": version("shmloader"), **counts, "findings": listed}
        print(json.dumps(record, indent=2))
    else:
        print(f"\nchecks: {len(found)}, problems: {problems}, notes: {notes}")
    return 1 if problems else 0


def lines(finding: Finding) -> Iterator[str]:
    """Write a finding for people: the verdict, the fact, and the remedy below it."""
    head = f"{finding.verdict:8} {finding.name:18} "
    indent = " " * len(head)
    # What is to be copied, such as a path or an option, stays whole.
    wrapper = textwrap.TextWrapper(_COLUMNS, break_long_words=False, break_on_hyphens=False)
    wrapper.initial_indent, wrapper.subsequent_indent = head, indent
    yield from wrapper.wrap(finding.fact)
    wrapper.initial_indent, wrapper.subsequent_indent = f"{indent}-> ", f"{indent}   "
    yield from wrapper.wrap(finding.remedy)
