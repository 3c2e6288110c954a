"""
One question per command: `python -m bench gil`, `kinds`, `retention`, `scaling` or `start`.

Each of these modules has `main(arguments) -> int`; the others are what two of them need.
"""
