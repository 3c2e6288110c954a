"""Is the outcome right, and is nothing left, whichever process dies and whenever?"""
