"""
What single steps cost: a hop, a wake, a copy, a leaf.

    python -m pytest bench/micro                              pytest-benchmark's table and ours
    python -m pytest bench/micro -k copy                      copies alone
    python -m pytest bench/micro --benchmark-json FILE        everything, for a comparison later

Our table converts medians: nanoseconds per hop, gigabytes per second. Results are checked
once per benchmark, outside of the timing. Each run compiles `../native` and what it needs of csrc/
with the machine's C compiler. Where it misleads: one process plays trainer and worker in all but
the hops, so nothing else here shows what two caches and two schedulers do to each other.
"""
