"""Tables and figures of the configurations of a matrix: time, memory, phases, utilisation and goodput."""
