"""One stack as the commands see it: its settings, its cluster, its engine, its jobs."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from infra.clusters import CHECKOUT, Access, kubeconfig_of, local_state_directory
from infra.settings import Settings, read_stack_file

if TYPE_CHECKING:
    from infra.engine import Engine
    from infra.jobs import Jobs


@dataclasses.dataclass(frozen=True)
class Workspace:
    """A checked stack."""

    stack: str
    settings: Settings

    @classmethod
    def open(cls, stack: str) -> Workspace:
        """Read a stack's settings.

        Raises:
            SettingsError: with every mistake in the stack file.
        """
        return cls(stack, read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack))

    @property
    def is_local(self) -> bool:
        """Whether the cluster is on this computer."""
        return self.settings.target == "local"

    @property
    def state_directory(self) -> Path:
        """Where the local cluster and the engine keep what they know."""
        return local_state_directory(self.stack)

    def access(self) -> Access:
        """How to reach the cluster.

        Raises:
            ClusterUnreachableError: it is not there.
        """
        return kubeconfig_of(self.settings, self.stack)

    def jobs(self) -> Jobs:
        """The stack's ElasticJobs.

        Raises:
            ClusterUnreachableError: the cluster is not there.
        """
        from infra.jobs import Jobs  # noqa: PLC0415 - the Kubernetes client takes a quarter of a second

        return Jobs(self.access(), self.settings.namespace)

    def pulumi_environment(self) -> dict[str, str]:
        """Variables with which `pulumi` sees this stack: its own state folder, unless another backend is named."""
        from infra.local.engines.pulumi import pulumi_environment  # noqa: PLC0415

        environment = pulumi_environment(self.state_directory)
        if not self.is_local:
            for name in ("PULUMI_BACKEND_URL", "PULUMI_CONFIG_PASSPHRASE", "PULUMI_CONFIG_PASSPHRASE_FILE"):
                if name in os.environ:
                    environment[name] = os.environ[name]
        return environment

    def engine(self) -> Engine:
        """The Pulumi engine for this stack, with its plugins in place."""
        from infra.engine import Engine  # noqa: PLC0415
        from infra.local.engines import ensure  # noqa: PLC0415
        from infra.local.engines.pulumi import install_plugins  # noqa: PLC0415

        pulumi = ensure(["pulumi", "pulumi-language-python", "pulumi-resource-kubernetes"])["pulumi"]
        environment = self.pulumi_environment()
        install_plugins(self.state_directory)
        backend = environment["PULUMI_BACKEND_URL"]
        return Engine(
            project=CHECKOUT,
            stack=self.stack,
            pulumi=pulumi.path,
            environment=environment,
            backend=Path(backend.removeprefix("file://")) if backend.startswith("file://") else None,
        )

    def images(self) -> dict[str, dict[str, object]]:
        """The local cluster's image table: each image of the project as a command of this checkout."""
        interpreter = Path(sys.executable)
        environment = {
            "PATH": f"{interpreter.parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONUNBUFFERED": "1",
        }
        mounts = [str(CHECKOUT), str(Path(sys.prefix)), str(Path(sys.base_prefix))]

        def python(module: str) -> dict[str, object]:
            return {
                "entrypoint": [str(interpreter), "-m", module],
                "environment": environment,
                "workingDir": "/",
                "user": "65532",
                "mounts": mounts,
            }

        from infra.local.engines import ensure  # noqa: PLC0415

        etcd = ensure(["etcd"])["etcd"].path
        return {
            "trainyard/training:local": python("training"),
            "trainyard/controller:local": python("training.controller"),
            "trainyard/etcd:local": {
                "entrypoint": [str(etcd)],
                "environment": {"PATH": "/usr/bin:/bin"},
                "workingDir": "/",
                "user": "65532",
                "mounts": [str(etcd)],
            },
        }
