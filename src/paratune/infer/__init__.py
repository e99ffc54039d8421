"""Using a trained model: evaluate it on a file, predict a file."""
