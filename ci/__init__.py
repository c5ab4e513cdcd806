"""What the workflows run, and GitLab's jobs as well: each step is a command of this folder, and runs at any shell.

`github`, `comment`, `handed_over` and `issue` need `requirements/ci.txt` and nothing else; they hold the token that may
write, and so must depend on little. The others use the `trainyard` command.
"""
