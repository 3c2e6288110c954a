"""Does the transport hold in any order of all that its processes do, and can each be had again?"""
