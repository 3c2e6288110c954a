# Packing of generators: nothing that another part uses.
