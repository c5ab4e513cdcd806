"""The elastic launcher: command line, rendezvous through etcd v3, worker processes, notices and exit codes."""
