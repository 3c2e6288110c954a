"""
Fuzzers: the ledger among hostile workers, and layouts and records of any bytes.
"""
