"""One stack as the commands see it: its settings, its cluster, its engine, its jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from infra.clusters import CHECKOUT, Access, kubeconfig_of, local_state_directory

if TYPE_CHECKING:
    from infra.cli.console import Steps
    from infra.engine import Engine
    from infra.jobs import Jobs
    from infra.local.cluster import LocalCluster
    from infra.local.nodes.spec import NodeSpec
    from infra.local.state import State
    from infra.settings import Settings


_ENGINES_OF_PULUMI = ("pulumi", "pulumi-language-python", "pulumi-resource-kubernetes")

_PULUMI_PROCESS = "pulumi"  # its name in the process table of the state folder
_PULUMI_GRACE = 30.0  # seconds in which the engine finishes the step it is at


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
        from infra.settings import read_stack_file  # noqa: PLC0415 - pydantic and the models take 0.1 s

        return cls(stack, read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack))

    @property
    def is_local(self) -> bool:
        """Whether the cluster is on this computer."""
        return self.settings.target == "local"

    @property
    def state_directory(self) -> Path:
        """Where the local cluster and the engine keep what they know."""
        return local_state_directory(self.stack)

    @cached_property
    def state(self) -> State:
        """The state folder, made when it is not there.

        Raises:
            LocalClusterError: it cannot be used.
        """
        from infra.local.state import State  # noqa: PLC0415

        return State(self.state_directory)

    @contextlib.contextmanager
    def changing(self, steps: Steps, *, wait: bool) -> Iterator[None]:
        """Hold the right to change the stack: one command at a time.

        What an engine run that was killed has left behind is ended first.

        Args:
            steps: told which process is waited for.
            wait: False to fail instead of waiting.
        """
        from infra.local.processes import Processes  # noqa: PLC0415

        with self.state.lock(wait=wait, note=steps.say):
            Processes(self.state).stop(_PULUMI_PROCESS, grace=_PULUMI_GRACE)
            yield

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

    def engine_has_state(self) -> bool:
        """Whether the engine has ever recorded this stack in the state folder."""
        return any(self.state_directory.glob(f"pulumi/backend/.pulumi/stacks/*/{self.stack}.json"))

    def engine(self) -> Engine:
        """The Pulumi engine for this stack, with its plugins in place."""
        from infra.engine import Engine  # noqa: PLC0415
        from infra.local.engines import ensure  # noqa: PLC0415
        from infra.local.engines.pulumi import install_plugins  # noqa: PLC0415
        from infra.local.processes import MARK  # noqa: PLC0415

        pulumi = ensure(_ENGINES_OF_PULUMI)["pulumi"]
        environment = self.pulumi_environment() | {MARK: f"{self.state.directory}:{_PULUMI_PROCESS}"}
        install_plugins(self.state_directory)
        backend = environment["PULUMI_BACKEND_URL"]
        return Engine(
            project=CHECKOUT,
            stack=self.stack,
            pulumi=pulumi.path,
            environment=environment,
            backend=Path(backend.removeprefix("file://")) if backend.startswith("file://") else None,
            scratch=self.state.folder("pulumi"),
        )

    def build_engines(self, steps: Steps) -> None:
        """Have the engines of this stack; what is missing is built, which may take long."""
        from infra.cli.engines import build_progress  # noqa: PLC0415
        from infra.local import engines  # noqa: PLC0415

        names = engines.EVERY_ENGINE if self.is_local else _ENGINES_OF_PULUMI
        with steps.step("engines", spinner=False), build_progress() as progress:
            found = engines.ensure(names, progress)
            built = sum(engine.origin == "cache" for engine in found.values())
            steps.note(f"{built} built here, {len(found) - built} from PATH")

    def local_cluster(self, steps: Steps | None = None) -> LocalCluster:
        """The cluster on this computer."""
        from infra.local import engines  # noqa: PLC0415
        from infra.local.cluster import ENGINES, LocalCluster  # noqa: PLC0415

        # To look at a cluster and to end it no engine is needed; who starts something has built them (`build_engines`).
        found = {name: engine.path for name in ENGINES if (engine := engines.locate(name))}
        port = self.settings.local.api_server_port if self.settings.local else None
        return LocalCluster(self.state, found, progress=steps, api_server_port=port)

    def local_nodes(self) -> list[NodeSpec]:
        """The nodes that the stack's pools ask for."""
        from infra.wiring.local_nodes import node_specs  # noqa: PLC0415

        return node_specs(self.settings.node_pools)

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
