"""Of small mistakes, made one at a time by rule and drawn by a seed, how many do the tests find?"""
