"""What each command does, one module each; imported when it is called."""
