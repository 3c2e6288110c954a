"""Does anything that is kept, sent, forked or too large damage a batch, or leak?"""
