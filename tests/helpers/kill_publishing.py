"""
Runs a publisher and three subscribers, one of which dies at a step of the protocol.

A program, to be run under the test build as kill_driver.py is. Each line of its input is a case as
JSON, with the `victim` and the arguments of Steps.arm(); each line of its output is what the others
got, and which steps the victim passed.
"""

import json
import os
import sys
import tempfile
import warnings

from tests.helpers.kill_steps import TRAINER, VARIABLE, Steps, names

EPOCHS = 2
SUBSCRIBERS = 3
JOIN_S = 5.0  # a publisher that dies at once has not heard of all


def main():
    """Write the file of steps, then load the code that maps it."""
    path, tempfile.tempdir = sys.argv[1:]
    steps = Steps(path, names())
    os.environ[VARIABLE] = path
    from tests.publish import actors

    warnings.simplefilter("ignore")
    wanted = [batch for epoch in actors.epochs_of(actors.loader_of(), EPOCHS) for batch in epoch]
    for line in sys.stdin:
        print(json.dumps(outcome(actors, steps, wanted, json.loads(line))), flush=True)


def outcome(actors, steps, wanted, case):
    """Run a case."""
    publisher = actors.Actor(once_told(actors.publishes), **PUBLISHED)
    readers = [actors.Actor(once_told(takes)) for _ in range(SUBSCRIBERS)]
    victim = {"publisher": publisher, "subscriber": readers[0]}[case.pop("victim")]
    everyone = [publisher, *readers]
    steps.arm(victim.pid, **case)
    for actor in everyone:
        actor.tell("go")
    try:
        said = [heard(actor, wanted) for actor in everyone if actor is not victim or not case]
    finally:
        for actor in everyone:
            actor.end()
    passed = {step: count for (step, side), count in steps.passages().items() if side == TRAINER}
    return {"died": steps.died, "said": said, "passed": passed}


PUBLISHED = {"subscribers": SUBSCRIBERS, "options": {"slots": 4}}


def once_told(part):
    """Let a part begin when it is told to: the steps are armed with its pid before."""

    def plays(say, hear, **arguments):
        hear()
        return part(say, hear, **arguments)

    return plays


def takes(say, hear):
    """Subscribe, and return the batches that came, and the error that ended them."""
    import shmloader
    from tests.publish import actors

    found = []
    try:
        with shmloader.subscribe(actors.NAME, timeout=JOIN_S) as batches:
            for _ in range(EPOCHS):
                found += [actors.as_values(batch) for batch in batches]
    except (RuntimeError, TimeoutError) as error:
        return found, str(error)
    return found, ""


def heard(actor, wanted):
    """Say how an actor ended: "whole", "over", "part: ..." with its error, or what went wrong."""
    try:
        said = actor.hear()
    except (TimeoutError, EOFError) as error:
        return f"{type(error).__name__}: {error}"
    if said == "over":
        return said
    found, error = said
    if found != wanted[: len(found)]:
        return "wrong batches"
    return "whole" if len(found) == len(wanted) else f"part: {error}"


if __name__ == "__main__":
    main()
