"""
Habits that once cost ten times torch's time, or its container's life: torch beside ours.

    python -m bench cliffs
    python -m bench cliffs --row "same bytes" --row zip --repeats 5
    python -m bench cliffs --group                  in control groups in which torch's program runs
    python -m bench cliffs --before ../earlier      another checkout's shmloader beside both

The exit code is 1 if a row is above a limit of rule.py without a reason there, or a batch differs.
"""

from bench.questions.cliffs.command import main

__all__ = ["main"]
