"""
What is left of a recorded run when the order in which batches arrive is chance.

With `in_order=False` the next task goes to the worker that is done first, so chance also decides
which worker makes a batch. Its content, and the draws of each worker's n-th sample, stay fixed.
"""


def without_order(epochs):
    """Return the run with the batches of each epoch sorted and what depends on workers removed."""
    return [[*map(without_batch, epoch), *sorted(contents_of(epoch))] for epoch in epochs]


def without_batch(event):
    return {key: event[key] for key in event if key not in ("batch", "content", "stamps")}


def contents_of(epoch):
    contents = [repr(event["content"]) for event in epoch if "content" in event]
    # Which batches an epoch delivers that is broken off is chance as well; their number is not.
    return contents if any(event["event"] == "end" for event in epoch) else []


def stamps_of_run(epochs):
    """Return {(seed, nth): (worker, draws)} for every sample of a run."""
    stamps = [event["stamps"] for epoch in epochs for event in epoch if "stamps" in event]
    return {key: stamp for batch in stamps for key, stamp in batch.items()}


def common_stamps(expected, actual):
    """Return the stamps of both runs, of the samples that both made."""
    expected, actual = stamps_of_run(expected), stamps_of_run(actual)
    common = expected.keys() & actual.keys()
    return {key: expected[key] for key in common}, {key: actual[key] for key in common}
