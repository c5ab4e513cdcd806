"""`trainyard top`: the live jobs of a stack on one screen."""
