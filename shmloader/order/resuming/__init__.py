"""Where a loader is in its epoch: the state that it saves, and going on from one."""
