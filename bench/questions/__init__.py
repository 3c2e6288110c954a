"""
One question per command, `python -m bench NAME`: a module, or a folder's `command.py`.

What each has is said in bench/question.py; the other modules are what questions share.
"""
