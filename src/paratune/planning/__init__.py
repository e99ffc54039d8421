"""What a run will need and how long it will take, said before any device is taken. A side room on floors 0 to 3."""
