"""Does the protocol in shared memory hold, whatever a worker writes?"""
