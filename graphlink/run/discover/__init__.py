"""Which recordings there are, and which are of one rank."""
