"""Has a loader with any options, in any life, the batches of an undisturbed one?"""
