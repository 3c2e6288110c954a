"""Does a loader go on where a state says, with the batches that would have come?"""
