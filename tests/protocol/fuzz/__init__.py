"""
Fuzzers of what a worker can write: the ledger among hostile workers, and layouts of any bytes.
"""
