"""What a matrix of runs says of systems: time, memory, phases, utilisation and goodput of its configurations."""
