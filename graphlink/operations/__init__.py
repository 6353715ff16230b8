"""Which operations the device time of a rank goes to, where they come from, and whether they use tensor cores."""
