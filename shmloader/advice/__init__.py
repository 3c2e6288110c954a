"""
Why a loop waits, and which options to change: the component behind `report()` and `tune()`.

report.py says it for people. It makes a Case of an epoch, asks causes.py what explains its waits,
and changes.py what to set instead; tuner.py searches the options, in model.py's loop that is played
event by event. Reads records of stats/ alone.
"""
