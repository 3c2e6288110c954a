"""
What a loader may be told beyond torch's arguments.

`options.py` writes each option once: its type, its check, its default. `rules.py` is the table of
rules between options, from which checks, `install()` and advice are derived.
"""
