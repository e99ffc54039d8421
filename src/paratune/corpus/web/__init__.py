"""What is asked of archives on the network: one client, which waits its turn and asks nobody else."""
