"""Complete training scripts, each one file, read from top to bottom."""
