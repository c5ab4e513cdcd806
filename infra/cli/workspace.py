"""One stack as the commands see it: its settings, its cluster, its engine, its jobs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra.clusters import (
    CHECKOUT,
    STATE_VARIABLE,
    Access,
    ClusterUnreachableError,
    kubeconfig_of,
    local_state_directory,
)
from infra.errors import TrainyardError, UsageError

if TYPE_CHECKING:
    from infra.cli.console import Steps
    from infra.engine import Engine
    from infra.jobs import Jobs
    from infra.local.cluster import LocalCluster
    from infra.local.nodes.spec import NodeSpec
    from infra.local.state import State
    from infra.policy_results import PolicyPack
    from infra.rehearsal.environment import Rehearsal
    from infra.settings import Settings
    from infra.settings.image_lock import ImageLock


ENGINES_OF_PULUMI = ("pulumi", "pulumi-language-python", "pulumi-resource-kubernetes")

MUTATING = "pulumi"
"""Name of engine runs that change the stack, in the process table of the state folder; one at a time."""
PREVIEWING = "pulumi-preview"
"""Name of engine runs that only look; they may run beside others."""
_LOCK_ATTEMPTS = 5
_PULUMI_GRACE = 30.0  # seconds in which the engine finishes the step it is at


def in_rehearsal() -> bool:
    """Whether this shell has the variables of a rehearsal."""
    from infra.rehearsal.connection import FOLDER_VARIABLE  # noqa: PLC0415

    return bool(os.environ.get(FOLDER_VARIABLE))


@dataclasses.dataclass(frozen=True)
class Workspace:
    """A checked stack."""

    stack: str
    settings: Settings
    packs: tuple[PolicyPack, ...] = ()
    """Policies that its changes must keep."""
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Told each event of its engine."""

    @classmethod
    def open(cls, stack: str) -> Workspace:
        """Read a stack's settings.

        Raises:
            SettingsError: with every mistake in the stack file.
        """
        from infra.settings import read_stack_file  # noqa: PLC0415 - pydantic and the models take 0.1 s

        return cls(stack, read_stack_file(CHECKOUT / f"Pulumi.{stack}.yaml", stack))

    @classmethod
    def open_to_remove(cls, stack: str) -> Workspace:
        """Like `open`, but a local cluster can be removed although its stack file has become wrong.

        Raises:
            SettingsError: the file is wrong and there is no local cluster of that name.
        """
        from infra.settings import Settings, SettingsError  # noqa: PLC0415

        try:
            return cls.open(stack)
        except SettingsError:
            if (local_state_directory(stack) / "control_plane").exists():
                return cls(stack, Settings(target="local"))
            raise

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
            Processes(self.state).stop(MUTATING, grace=_PULUMI_GRACE)
            for left in self.state.path("pulumi").glob(f"run-{MUTATING}-*"):
                shutil.rmtree(left)
            yield

    def access(self) -> Access:
        """How to reach the cluster.

        Raises:
            ClusterUnreachableError: it is not there.
        """
        return kubeconfig_of(self.settings, self.stack)

    def require_outside_rehearsal(self, instead: str = "add --rehearse") -> None:
        """Before a stack is touched for real: are this shell's variables the user's own?

        Those of a rehearsal lead the AWS tools and the engine to stand-ins and to their record. A local cluster is
        told all that it needs, and does not mind.

        Args:
            instead: what does the same in the rehearsal, for the message.

        Raises:
            UsageError: they are a rehearsal's.
        """
        if not self.is_local and in_rehearsal():
            raise UsageError(
                f"this shell has the variables of a rehearsal (eval of `trainyard env --rehearse`): stack {self.stack}"
                f" would be looked for in its stand-ins. Open a new shell for the real stack, or {instead}"
            )

    def image_lock(self) -> ImageLock:
        """What was built for the stack.

        Raises:
            ImageLockError: the file is damaged.
        """
        from infra.settings import image_lock  # noqa: PLC0415

        return image_lock.read(CHECKOUT, self.stack)

    def require_images(self) -> None:
        """Before a stack is brought up: were the images of its own pods built?

        Raises:
            SettingsError: they were not; with the command that builds them.
        """
        from infra.settings import require_images  # noqa: PLC0415

        require_images(self.settings, self.stack)

    def require_credentials(self) -> None:
        """Before anything is done to an AWS stack: are there credentials at all?

        Raises:
            TrainyardError: there are none.
        """
        if self.settings.target != "aws":
            return
        import boto3  # noqa: PLC0415 - half a second
        from botocore.exceptions import BotoCoreError  # noqa: PLC0415

        try:
            found, why = boto3.session.Session().get_credentials(), ""
        except BotoCoreError as error:  # a profile that is not there, a file that cannot be read
            found, why = None, f" ({error})"
        if found is None:
            raise TrainyardError(
                f"there are no AWS credentials{why}, and stack {self.stack} is a cluster on AWS. Log in (aws sso login,"
                " or set AWS_PROFILE), or go through all of it without an account:"
                f" trainyard up -s {self.stack} --rehearse"
            )

    def require_unprotected(self) -> None:
        """Before an AWS stack is destroyed: do its settings allow it?

        Raises:
            TrainyardError: they protect it.
        """
        if self.settings.aws is not None and self.settings.aws.protect:
            raise TrainyardError(
                f"stack {self.stack} is protected: trainyard:aws.protect is true in Pulumi.{self.stack}.yaml, so its"
                " cluster, file systems, buckets and keys cannot be deleted. To remove it all the same: set it to"
                f" false, run `trainyard up -s {self.stack}`, then this again"
            )

    def way_in(self) -> dict[str, str]:
        """How to reach the cluster, for people: its kubeconfig, or the command that makes one."""
        if self.settings.aws is None:
            return {"kubeconfig": str(self.access().path)}
        from infra.wiring.naming import cluster_name  # noqa: PLC0415

        name, region = cluster_name(self.settings, self.stack), self.settings.aws.region
        return {"kubeconfig_command": f"aws eks update-kubeconfig --name {name} --region {region}"}

    def jobs(self) -> Jobs:
        """The stack's ElasticJobs.

        Raises:
            ClusterUnreachableError: the cluster is not there.
        """
        from infra.jobs import Jobs  # noqa: PLC0415 - the Kubernetes client takes a quarter of a second

        return Jobs(self.access(), self.settings.namespace)

    @property
    def keeps_own_record(self) -> bool:
        """Whether the engine's record of this stack is in the state folder.

        It is, unless the user named a backend for Pulumi (`PULUMI_BACKEND_URL`, `pulumi login`) and the stack is not
        of the local target: then backend, login, plugins and passphrase are theirs, and nothing of it is touched.
        """
        pulumi_home = Path(os.environ.get("PULUMI_HOME", "~/.pulumi")).expanduser()
        named = "PULUMI_BACKEND_URL" in os.environ or (pulumi_home / "credentials.json").exists()
        return self.is_local or not named

    def pulumi_environment(self) -> dict[str, str]:
        """Variables with which plain `pulumi` sees this stack as the command does."""
        from infra.local.engines.pulumi import install_plugins, pulumi_environment  # noqa: PLC0415

        if not self.keeps_own_record:
            return {"PULUMI_SKIP_UPDATE_CHECK": "true"}
        environment = pulumi_environment(self.state.directory)
        install_plugins(self.state.directory)
        if self.settings.target == "aws":  # the AWS plugin has no build here: Pulumi fetches its release
            del environment["PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION"]
        return environment | {"TRAINYARD_STATE_DIR": str(self.state.directory)}

    def kubeconfig(self) -> Path:
        """A kubeconfig whose current context is the stack's cluster, for plain `kubectl`.

        Raises:
            TrainyardError: the user's kubeconfig has no such context.
        """
        from infra.local.engines import ensure  # noqa: PLC0415

        access = self.access()
        if access.context is None:
            return access.path
        kubectl = str(ensure(["kubectl"])["kubectl"].path)
        view = ["config", "view", "--raw", "--flatten", "--minify"]
        done = subprocess.run(
            [kubectl, *view, f"--kubeconfig={access.path}", f"--context={access.context}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise TrainyardError(
                f"context {access.context} of {access.path} cannot be used: {done.stderr.strip()}."
                f" Correct trainyard:kubeconfig.context in Pulumi.{self.stack}.yaml"
            )
        path = self.state.path("kubeconfig")
        self.state.write(path, done.stdout)
        return path

    def forget(self) -> None:
        """Drop the engine's own record of the stack, for a cluster that is gone with all that the stack made in it."""
        record = self.state.path("pulumi", "backend")
        if record.exists():
            shutil.rmtree(record)

    def engine(self, process: str = MUTATING) -> Engine:
        """The Pulumi engine for this stack.

        Args:
            process: its name in the process table of the state folder.
        """
        from infra.engine import Engine  # noqa: PLC0415
        from infra.local.engines import ensure  # noqa: PLC0415
        from infra.local.processes import MARK  # noqa: PLC0415

        return Engine(
            project=CHECKOUT,
            stack=self.stack,
            pulumi=ensure(ENGINES_OF_PULUMI)["pulumi"].path,
            environment=self.pulumi_environment() | {MARK: f"{self.state.directory}:{process}"},
            backend=self.state.folder("pulumi", "backend") if self.keeps_own_record else None,
            scratch=self.state.folder("pulumi") / f"run-{process}-",
            packs=self.packs,
            on_event=self.on_event,
        )

    def build_engines(self, steps: Steps) -> None:
        """Have the engines of this stack; what is missing is built, which may take long."""
        from infra.local.engines import LOCAL_ENGINES  # noqa: PLC0415

        _build(LOCAL_ENGINES if self.is_local else ENGINES_OF_PULUMI, steps)

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
        from infra.local.engines import ensure  # noqa: PLC0415

        interpreter, etcd = Path(sys.executable), ensure(["etcd"])["etcd"].path
        environment = {
            "PATH": f"{interpreter.parent}:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": str(CHECKOUT),
            "PYTHONUNBUFFERED": "1",
        }
        shown = [CHECKOUT, Path(sys.prefix), Path(sys.base_prefix)]
        return {
            "trainyard/training:local": _image([interpreter, "-m", "training"], environment, shown),
            "trainyard/controller:local": _image([interpreter, "-m", "training.controller"], environment, shown),
            "trainyard/etcd:local": _image([etcd], {"PATH": "/usr/bin:/bin"}, [etcd]),
        }


@dataclasses.dataclass(frozen=True)
class RehearsedWorkspace(Workspace):
    """A checked AWS stack, in a rehearsal of its own: nothing of the user's backend, login or account is used."""

    @classmethod
    def open(cls, stack: str) -> RehearsedWorkspace:
        """Like `Workspace.open`, for stacks that can be rehearsed.

        Raises:
            UsageError: the stack's target is not aws.
        """
        found = Workspace.open(stack)
        if found.settings.target != "aws":
            raise UsageError(
                f"only stacks of target aws are rehearsed; stack {stack} has target {found.settings.target} and costs"
                f" nothing anyway: trainyard up -s {stack}"
            )
        return cls(stack, found.settings)

    @classmethod
    def open_to_remove(cls, stack: str) -> RehearsedWorkspace:
        """Like `open`, but a rehearsal can be ended although its stack file has become wrong.

        Raises:
            SettingsError: the file is wrong and there is no rehearsal of that name.
        """
        from infra.settings import Settings, SettingsError  # noqa: PLC0415

        try:
            return cls.open(stack)
        except (SettingsError, UsageError):
            there = cls(stack, Settings(target="local"))  # what the engine removes is on its record
            if there.state_directory.exists():
                return there
            raise

    @property
    def state_directory(self) -> Path:
        """Where the rehearsal and its engine keep what they know; gone after `down --rehearse`."""
        beside = local_state_directory(self.stack)
        if os.environ.get(STATE_VARIABLE):
            return beside / f"rehearsal-{self.stack}"
        return beside.with_name(f"rehearsal-{beside.name}")

    @contextlib.contextmanager
    def changing(self, steps: Steps, *, wait: bool) -> Iterator[None]:
        """Like `Workspace.changing`; whoever is waited for may have removed the folder, with the lock, meanwhile."""
        from infra.local.errors import LocalClusterError  # noqa: PLC0415

        with contextlib.ExitStack() as held:
            for attempt in range(_LOCK_ATTEMPTS):
                try:
                    held.enter_context(self.state.lock(wait=wait, note=steps.say))
                    break
                except LocalClusterError as error:
                    # Others who wait may have made the folder again by now: only the error tells that it was gone.
                    if not isinstance(error.__cause__, FileNotFoundError) or attempt == _LOCK_ATTEMPTS - 1:
                        raise
                    self.state.folder()
            held.enter_context(super().changing(steps, wait=wait))
            yield

    @property
    def keeps_own_record(self) -> bool:
        """Always: a rehearsal's record is worth nothing to anybody else."""
        return True

    @property
    def region(self) -> str:
        """The stack's AWS region."""
        assert self.settings.aws is not None  # noqa: S101 - the target is aws
        return self.settings.aws.region

    def rehearsal(self, steps: Steps | None = None) -> Rehearsal:
        """The stand-ins."""
        from infra.local import engines  # noqa: PLC0415
        from infra.rehearsal.environment import ENGINES, Rehearsal  # noqa: PLC0415

        found = {name: engine.path for name in ENGINES if (engine := engines.locate(name))}
        return Rehearsal(self.state, found, progress=steps)

    def write_project(self) -> None:
        """Give the rehearsal's own project the settings of the stack file as they are now."""
        from infra.rehearsal.tools import write_project  # noqa: PLC0415

        # The program takes the controller from the image lock, as everywhere, and refuses a stack without one. To
        # rehearse it nothing must have been built: here the stand-in for it counts as named.
        images = {} if self.settings.images.built else {"controller": self.settings.images.controller}
        write_project(self.state, self.stack, CHECKOUT, images)

    def access(self) -> Access:
        """How to reach the rehearsed cluster.

        Raises:
            ClusterUnreachableError: no rehearsal is up.
        """
        if not self.state_directory.exists():
            raise ClusterUnreachableError(
                f"there is no rehearsal of stack {self.stack}. Begin one: trainyard up -s {self.stack} --rehearse"
            )
        again = f"trainyard up -s {self.stack} --rehearse"
        return Access(self.rehearsal().connection().kubeconfig, None, f"Is the rehearsal running? Repair it: {again}")

    def pulumi_environment(self) -> dict[str, str]:
        """Variables with which plain `pulumi` sees the rehearsal."""
        from infra.rehearsal.tools import environment  # noqa: PLC0415

        return environment(self.state, self.rehearsal().connection())

    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig of the rehearsed cluster."""
        return self.access().path

    def engine(self, process: str = MUTATING) -> Engine:
        """The engine, in a project whose stack file is the rehearsal's own."""
        from infra.rehearsal.tools import HIDDEN_VARIABLES, project_folder  # noqa: PLC0415

        return dataclasses.replace(
            super().engine(process),
            project=project_folder(self.state),
            hidden=HIDDEN_VARIABLES,
            by_hand='eval "$(trainyard env -s {stack} --rehearse)";'
            ' pulumi -C "$TRAINYARD_REHEARSAL/project" {operation} -s {stack}',
        )

    def build_engines(self, steps: Steps) -> None:
        """Have the engines of a rehearsal; what is missing is built, which may take long."""
        from infra.rehearsal.environment import ENGINES  # noqa: PLC0415

        _build(ENGINES, steps)


def _build(names: Sequence[str], steps: Steps) -> None:
    from infra.cli.engines import build_progress  # noqa: PLC0415
    from infra.local import engines  # noqa: PLC0415

    with steps.step("engines", spinner=False), build_progress() as progress:
        found = engines.ensure(names, progress)
        elsewhere = sum(engine.origin != "cache" for engine in found.values())
        steps.note(f"{len(found) - elsewhere} of our own build, {elsewhere} of this computer's")


def _image(
    entrypoint: Sequence[Path | str], environment: Mapping[str, str], shown: Sequence[Path]
) -> dict[str, object]:
    """An entry of the image table, run by the user of the project's images (`infra.in_cluster.pods.UNPRIVILEGED`)."""
    return {
        "entrypoint": [str(part) for part in entrypoint],
        "environment": dict(environment),
        "workingDir": "/",
        "user": "65532",
        "mounts": [str(path) for path in shown],
    }
