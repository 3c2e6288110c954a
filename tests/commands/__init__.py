"""Do the commands say what is true, with exit codes that a script can use?"""
