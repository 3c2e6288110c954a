"""Do type checkers accept correct user programs, and reject wrong ones?"""
