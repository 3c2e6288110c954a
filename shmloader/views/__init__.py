"""
What others see of a loader: live pages of its segments, traces, counters for Prometheus.

live.py reads another process's segment, for `shmloader top` and `trace`; chrome_trace.py writes
Chrome's trace events, exporter.py counters. Reads records of stats/ alone.
"""
