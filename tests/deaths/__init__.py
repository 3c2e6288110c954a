"""Whatever dies, and whenever: is the outcome right, and is nothing left?"""
