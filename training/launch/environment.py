"""Names of the environment variables by which launcher, workers and scripts understand each other.

torch's own (`RANK`, `MASTER_ADDR`, ...) and torchrun's (`PET_...`) are written where they are used; what each of ours
means to a user stands in docs/reference/launcher.md.
"""

from typing import Final

# Of the launcher for its workers.
# Number of the world, counted through the whole job: a later one fences off what an earlier one still does.
GENERATION: Final = "TRAINYARD_GENERATION"
# Run id and a random part, fixed when the job's state is made: generations are compared within a run.
RUN: Final = "TRAINYARD_RUN"
# Until when this node is sure to be a member (`lease`): a descriptor of the launcher, found through /proc, so that
# nothing is left behind when the launcher is killed, and no disk is involved.
LEASE_FILE: Final = "TRAINYARD_LEASE_FILE"
# Number of the descriptor over which the launcher and a worker with hooks talk (`control`).
CONTROL: Final = "TRAINYARD_CONTROL"
# Where the launcher's etcd is, for the claim on the checkpoints (`training.checkpoint.lock`); JSON, without a password.
CHECKPOINT_LOCK: Final = "TRAINYARD_CHECKPOINT_LOCK"
# File in which a script reports its steps (`training.metrics.progress`).
PROGRESS_FILE: Final = "TRAINYARD_PROGRESS_FILE"

# Of the user; all but the last six stand for an option of the launcher (`options`).
RESTART_ON: Final = "TRAINYARD_RESTART_ON"
NO_RESTART_ON: Final = "TRAINYARD_NO_RESTART_ON"
RESTART_PAUSE: Final = "TRAINYARD_RESTART_PAUSE"
BACKEND: Final = "TRAINYARD_BACKEND"
INIT_METHOD: Final = "TRAINYARD_INIT_METHOD"
START: Final = "TRAINYARD_START"
PRELOAD: Final = "TRAINYARD_PRELOAD"
RECORDS: Final = "TRAINYARD_RECORDS"
METRICS_PORT: Final = "TRAINYARD_METRICS_PORT"
NOTICES: Final = "TRAINYARD_NOTICES"
# Port of a node's first worker for Prometheus, the next one has the next (`training.metrics.worker`).
WORKER_METRICS_PORT: Final = "TRAINYARD_WORKER_METRICS_PORT"
# Folder in memory for the state after the last step, where it is not /dev/shm (`training.checkpoint.replica`).
MEMORY: Final = "TRAINYARD_MEMORY"
# `warn`: what does not fit between image and machine is no reason to stop (`training.diagnose.image`).
IMAGE_CHECK: Final = "TRAINYARD_IMAGE_CHECK"
# Where else than at the link's address a metadata service answers, and where the pod's annotations lie (`notices`).
METADATA_ENDPOINT: Final = "TRAINYARD_METADATA_ENDPOINT"
POD_ANNOTATIONS: Final = "TRAINYARD_POD_ANNOTATIONS"
# Settings of etcd that should not stand on a command line: this and the key of --rdzv-conf in capitals.
ETCD_PREFIX: Final = "TRAINYARD_ETCD_"
