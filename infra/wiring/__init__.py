"""Decisions on which two or more objects must agree: pure functions from settings to plain data, no Pulumi."""
