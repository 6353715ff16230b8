"""Find recordings, and those of one rank."""
