"""NCCL's and c10d's own recordings of the communication of a rank."""
