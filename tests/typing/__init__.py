"""Do type checkers say of a user's program what they must?"""
