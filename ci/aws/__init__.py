"""A little Pulumi program of its own: CI's way to AWS."""
