"""
One loader for several trainers, beside a loader of its own for each, and beside TensorSocket.

    python -m bench publish
    python -m bench publish --part rates --trainers 1 --trainers 4 --rounds 3
    python -m bench publish --part deaths

rates: each trainer reads two epochs, the second of which is measured, and drops its batches. The
loads: samples that wait 2 ms, as for a network; samples that compute for 2 ms, as in decoding; and
batches of 38.5 MB that cost nothing to make. All ways have the same number of workers, where each
loader has at least one. Of the batches that a trainer took, those are right that torch's loader
would have given, in its order.

deaths: three trainers read two epochs of 40 batches, and something happens when each has taken ten.
Each run has 45 s.

TensorSocket is of the optional extra `peers`, and runs at its defaults over torch's loader.
"""

from bench.question import Question, number, numbers, several
from bench.questions.publish import deaths, rates

QUESTION = Question(
    {"rates": rates.records, "deaths": deaths.records},
    {
        "load": several(rates.LOADS),
        "trainers": numbers("default: 1, 2 and 4"),
        "workers": number(4, "in all"),
        "rounds": number(1),
    },
)
