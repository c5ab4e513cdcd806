"""What runs inside the cluster, whichever cluster it is: one component a file.

(Not named `platform`: the engine puts `infra/` first on `sys.path`, where that name would hide the standard library's.)
"""
