"""Is a worker what torch's is, whichever process starts it, and if that one dies?"""
