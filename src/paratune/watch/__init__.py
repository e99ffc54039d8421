"""`paratune watch`: reads the state of runs and matrices from their records while they run."""
