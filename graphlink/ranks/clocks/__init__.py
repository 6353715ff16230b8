"""Offset and drift of the clock of each rank, from what ranks did together."""
