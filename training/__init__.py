"""The training runtime: an elastic launcher, a sample cursor, checkpoints, progress lines, examples.

Importing this package imports nothing else, so that `training.controller` runs where torch is not installed.
"""
