# Forked children of this process: nothing that another part uses.
