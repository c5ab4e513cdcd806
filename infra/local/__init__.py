"""The cluster on this computer: real engines as local processes, pods as local processes, no Docker, no root."""
