"""What is wrong with a stack, or with one job on it: from symptoms to their cause."""
