"""
How many workers a loader needs, found while it runs: `num_workers="auto"`.

controller.py decides, by windows of time alone. windows.py measures them. autoscaler.py is the part
of an iterator that has one follow the other. Without this folder there is no "auto".
"""
