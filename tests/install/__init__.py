"""Does the wheel work without a compiler, and does an import say what is missing?"""
