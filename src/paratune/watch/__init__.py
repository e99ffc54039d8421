"""`paratune watch`: what runs are at now, read from their records while others write them. No torch."""
