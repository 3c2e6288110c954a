"""One run in a process of its own; see run.py."""

import sys

from bench.questions.memory.run import main

if __name__ == "__main__":
    main(sys.argv[1])
