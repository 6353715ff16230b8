"""What the communication of all ranks cost, and who is waited for."""
