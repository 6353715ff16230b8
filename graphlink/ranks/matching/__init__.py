"""Which communication of several ranks belongs together."""
