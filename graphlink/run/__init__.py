"""A job from files to files: one rank, the joining of several, and where their outputs go."""
