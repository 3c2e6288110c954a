"""
What a batch costs with each loader: the same workloads, one process per contender.

`python -m bench` runs everything; README.md says what is measured and where it misleads.
"""
