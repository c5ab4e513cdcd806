"""Looks at the machine and the image that a job runs in, and says in sentences what does not fit."""
