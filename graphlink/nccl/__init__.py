"""What NCCL's and c10d's own recordings say of the communication of a rank."""
