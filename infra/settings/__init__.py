"""Stack settings: the only code that reads stack configuration.

`Pulumi.<stack>.yaml` -> `Settings`, one frozen tree. Whatever is wrong in a stack file is reported in one go: for each
mistake its key path and line, what is wrong, what would be right, and the command that fixes it.

Two doors lead here: the command reads the file before it starts anything (`read_stack_file`), and the Pulumi program
takes the same values from the engine (`from_engine`), so that `pulumi up` without the command is checked alike.

What can be said is in sections.py, images.py and aws.py; what goes wrong between values is in contradictions.py and
aws_contradictions.py; reading.py holds the doors. What was built for a stack is in its image lock, image_lock.py.
"""

from infra.settings.aws import (
    Aws,
    AwsAccess,
    AwsBudget,
    AwsCapacity,
    AwsEndpoint,
    AwsLogs,
    AwsLustre,
    AwsMonitoring,
    AwsNetwork,
    AwsNodePool,
    AwsQueues,
    AwsRegistry,
    AwsRepair,
    AwsReservation,
    AwsStorage,
    AwsSystemPool,
)
from infra.settings.base import Section
from infra.settings.images import Images
from infra.settings.mistakes import PROJECT, SettingsError
from infra.settings.places import YAML_MISTAKES
from infra.settings.reading import from_engine, parse, read_stack_file, require_images
from infra.settings.sections import (
    LOCAL_NODES_MAX,
    AccessMode,
    Capacity,
    Checkpoints,
    Controller,
    Etcd,
    Kubeconfig,
    Local,
    NodePool,
    Settings,
    Target,
)

__all__ = [
    "LOCAL_NODES_MAX",
    "PROJECT",
    "YAML_MISTAKES",
    "AccessMode",
    "Aws",
    "AwsAccess",
    "AwsBudget",
    "AwsCapacity",
    "AwsEndpoint",
    "AwsLogs",
    "AwsLustre",
    "AwsMonitoring",
    "AwsNetwork",
    "AwsNodePool",
    "AwsQueues",
    "AwsRegistry",
    "AwsRepair",
    "AwsReservation",
    "AwsStorage",
    "AwsSystemPool",
    "Capacity",
    "Checkpoints",
    "Controller",
    "Etcd",
    "Images",
    "Kubeconfig",
    "Local",
    "NodePool",
    "Section",
    "Settings",
    "SettingsError",
    "Target",
    "from_engine",
    "parse",
    "read_stack_file",
    "require_images",
]
