"""
One question per command: `python -m bench cliffs`, `gil`, `kinds`, `retention`, `scale`, `scaling`,
`start`.

Each of these modules has `main(arguments) -> int`; the others are what two of them need.
"""
