"""Recording: execution trace and Kineto trace of the same steps, of all ranks, in one folder."""
