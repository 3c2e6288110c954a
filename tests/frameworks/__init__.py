"""Does it serve where people train: inside other projects' trainers and loaders?"""
