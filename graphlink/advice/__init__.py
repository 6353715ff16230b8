"""What to change in a run, each with its evidence and with the gain that a replay computes (docs/advice.md)."""
