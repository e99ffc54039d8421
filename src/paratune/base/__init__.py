"""What everything rests on, with the standard library alone: files written whole, signals, text, units, imports."""
