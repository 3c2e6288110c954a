"""Do the same things hold for whatever hands out batches or results?"""
