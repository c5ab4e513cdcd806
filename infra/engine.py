"""Runs the Pulumi engine on one stack, as a user at a shell would, and reads what it reports.

The CLI is run as a program of its own (not through the Automation API, which asks the CLI several questions before each
operation, about a second each): what the command does can be repeated by hand after `eval "$(trainyard env)"`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import psutil

from infra import parts, policy_results
from infra.errors import TrainyardError
from infra.parts import Part
from infra.policy_results import PolicyPack, PolicyResult

Operation = Literal["up", "preview", "destroy", "refresh", "drift"]
"""`drift` looks, as `refresh` does, at what has become of the resources, and keeps its own record as it is."""

INTERRUPTED_ENDS = timedelta(seconds=30)
"""How long an interrupted engine may take for the step that it is at."""
_LOOK_SECONDS = 0.2
_CLOSING = ("preview failed", "update failed")
"""The engine's last words about any failure; they name no cause."""
_PROTECTED = re.compile(r"marked for protection|because it is protected")
"""How the engine refuses to replace or delete what is protected; its advice is to edit the program."""


class EngineRunError(TrainyardError):
    """The engine could not do what was asked; the message holds its own diagnostics."""


@dataclass
class Summary:
    """What an operation changed."""

    changes: dict[str, int] = field(default_factory=dict)
    """Number of resources by operation: create, update, replace, delete, same."""
    steps: list[dict[str, Any]] = field(default_factory=list)
    """Each planned or done step: operation, type, URN, and the properties that differ."""

    policies: list[PolicyResult] = field(default_factory=list)
    """What rules of policies told."""

    @property
    def changed(self) -> int:
        """How many resources were or would be touched."""
        return sum(count for operation, count in self.changes.items() if operation != "same")

    def sentence(self, *, done: bool) -> str:
        """In a few words: what was done, or what would be."""
        if not self.changed:
            same = self.changes.get("same", 0)
            return f"no changes ({same} resource{'' if same == 1 else 's'})"
        counted = sorted((operation, count) for operation, count in self.changes.items() if operation != "same")
        return ", ".join(
            f"{count} {operation.rstrip('e')}ed" if done else f"{count} to {operation}" for operation, count in counted
        )


class PolicyError(EngineRunError):
    """Rules of policies that are mandatory are broken."""

    def __init__(self, message: str, summary: Summary) -> None:
        super().__init__(message)
        self.summary = summary


@dataclass(frozen=True)
class Engine:
    """The engine, told where the project, the stack and its state are."""

    project: Path
    """The folder of Pulumi.yaml."""
    stack: str
    pulumi: Path
    """The Pulumi CLI."""
    environment: Mapping[str, str]
    """Variables that make the CLI use this stack's state, and no other."""
    backend: Path | None
    """Folder of the file backend; None where the user's own backend is used."""
    scratch: Path
    """Where temporary files of a run go, in a folder whose path begins so: the Kubernetes provider writes the
    kubeconfig, keys and all, into one."""
    hidden: tuple[str, ...] = ()
    """Beginnings of names of the user's variables that the engine does not get: credentials, in a rehearsal."""
    packs: tuple[PolicyPack, ...] = ()
    """Policies that `up` and `preview` must keep."""
    on_event: Callable[[Mapping[str, Any]], None] = lambda _: None
    """Told each event of the engine, for reports."""
    by_hand: str = 'eval "$(trainyard env -s {stack})"; pulumi {operation} -s {stack}'
    """How a user repeats an operation at a shell."""

    def run(
        self,
        operation: Operation,
        on_step: Callable[[str], None] = lambda _: None,
        within: timedelta | None = None,
        stop: threading.Event | None = None,
        only: Part | None = None,
        plan: Path | None = None,
    ) -> Summary:
        """Carry out an operation without asking back.

        Args:
            operation: what to do.
            on_step: told the name of each resource when work on it begins.
            within: interrupt the engine after this long; absent: it may take as long as it wants.
            stop: interrupt the engine when this is set.
            only: a part of the stack: nothing else is touched.
            plan: a preview writes here what it would do, and `up` does nothing that is not in it. Secrets of the stack
                are in it, encrypted as in its record.

        Raises:
            EngineRunError: with the diagnostics of the engine and the program.
            PolicyError: mandatory rules of policies are broken.
            UsageError: the part cannot be brought up alone as the stack is now.
        """
        self._drop_stale_lock()
        self._create_stack()
        command = "refresh" if operation == "drift" else operation
        arguments = [command, "--stack", self.stack, "--non-interactive", "--json", "--color", "never"]
        arguments += {
            "up": ["--yes", "--skip-preview"],
            "destroy": ["--yes", "--skip-preview"],
            "refresh": ["--yes", "--skip-preview"],
            "preview": [],
            "drift": ["--preview-only"],
        }[operation]
        if plan:
            arguments += ["--save-plan" if operation == "preview" else "--plan", str(plan)]
        arguments += parts.targets(only) if only else []
        urns = self._urns() if only else []
        if only:
            parts.require_one_or_the_other(only, urns, self.stack)
        with tempfile.TemporaryDirectory(prefix=self.scratch.name, dir=self.scratch.parent) as temporary:
            if operation in ("up", "preview"):
                looks = operation == "preview"
                arguments += policy_results.arguments(self.packs, Path(temporary), to_the_end=looks)
            of_run = parts.environment(only, Path(temporary), urns)
            return self._events(operation, arguments, on_step, of_run, within, stop)

    def _events(
        self,
        operation: Operation,
        arguments: list[str],
        on_step: Callable[[str], None],
        of_run: Mapping[str, str],
        within: timedelta | None,
        stop: threading.Event | None,
    ) -> Summary:
        summary = Summary()
        problems: list[str] = []
        failed: list[str] = []
        # Errors go to a file: a pipe that nobody reads while the events are read could fill up and stop the engine.
        with Path(of_run["TMPDIR"], "stderr").open("w+") as errors:
            process = subprocess.Popen(
                [str(self.pulumi), *arguments],
                cwd=self.project,
                env={
                    **self._variables(),
                    "PULUMI_ENABLE_STREAMING_JSON_PREVIEW": "true",
                    **of_run,
                },
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                # A session of its own: Ctrl-C at the terminal reaches it once, through us, and not a second time
                # directly, which the engine would take for "end at once and leave the lock".
                start_new_session=True,
            )
            try:
                with _interrupted_after(process, within), _interrupted_by(process, stop):
                    for event in _json_lines(process):
                        self.on_event(event)
                        _take(event, summary, problems, failed, on_step)
                    process.wait()
            except BaseException:
                _interrupt(process)
                raise
            errors.seek(0)
            said = errors.read().strip()
        if operation == "preview":
            summary.policies = policy_results.at_their_level(summary.policies, self.packs)
        broken = [one for one in policy_results.in_order(summary.policies) if one.blocks]
        if broken and (process.returncode == 0 or not _other_problems(problems)):
            raise PolicyError(self._broken(operation, broken), summary)
        if process.returncode != 0:
            told = problems or [said or f"it ended with code {process.returncode} and said nothing"]
            words = [policy_results.in_words(line) for text in told for line in text.strip().splitlines()]
            lines = list(dict.fromkeys(words))
            kept = "Nothing was changed" if operation in ("preview", "drift") else "What was done is recorded"
            raise EngineRunError(
                f"pulumi {operation} of stack {self.stack} failed{' at ' + ', '.join(failed) if failed else ''}:\n"
                + "\n".join(f"  {line}" for line in lines)
                + (self._switch() if any(map(_PROTECTED.search, told)) else "")
                + f"\n{kept}; mend the cause and run it again. By hand: "
                + self.by_hand.format(stack=self.stack, operation=operation)
            )
        return summary

    def _broken(self, operation: Operation, broken: list[PolicyResult]) -> str:
        """What to say of broken rules."""
        lines = [f"  {one.rule} ({one.severity}): {one.name}: {one.message or one.title}" for one in broken]
        kept = "Nothing was changed" if operation in ("preview", "drift") else "What was done is recorded"
        return (
            f"pulumi {operation} of stack {self.stack} breaks rules of its policies:\n"
            + "\n".join(lines)
            + f"\n{kept}. Why, and what to do: trainyard explain {broken[0].rule}. Without policies: --no-policies"
        )

    def _switch(self) -> str:
        """What protects resources, for who is told that they are protected."""
        return (
            f"\nIt is trainyard:aws.protect in Pulumi.{self.stack}.yaml that protects resources. Undo the edit that"
            " would replace or delete them. Or, if they shall go with all that is stored in them: set"
            " trainyard:aws.protect: false, bring that up alone, then make the edit."
        )

    def _variables(self) -> dict[str, str]:
        """The engine's environment: the user's, less what is hidden, and ours."""
        theirs = {name: value for name, value in os.environ.items() if not name.startswith(self.hidden)}
        return {**theirs, **self.environment}

    def _call(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.pulumi), *arguments, "--non-interactive", "--color", "never"],
            cwd=self.project,
            env=self._variables(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def _exists(self) -> bool:
        if self.backend is None:
            return self._call(["stack", "output", "--stack", self.stack]).returncode == 0
        return any(self.backend.glob(f".pulumi/stacks/*/{self.stack}.json"))

    def _urns(self) -> list[str]:
        """All resources on the record of the stack.

        Raises:
            EngineRunError: the record cannot be read.
        """
        done = self._call(["stack", "export", "--stack", self.stack])
        if done.returncode != 0:
            raise EngineRunError(f"the record of stack {self.stack} cannot be read: {done.stderr.strip()}")
        return [each["urn"] for each in (json.loads(done.stdout).get("deployment") or {}).get("resources") or ()]

    def _create_stack(self) -> None:
        if self._exists():
            return
        done = self._call(["stack", "init", self.stack])
        if done.returncode != 0:
            raise EngineRunError(f"stack {self.stack} cannot be created: {done.stderr.strip()}")

    def _drop_stale_lock(self) -> None:
        """Remove the lock of a run that was killed; a living one keeps it and the engine says so."""
        if self.backend is None:
            return
        for lock in self.backend.glob(f".pulumi/locks/**/{self.stack}/*.json"):
            try:
                owner = json.loads(lock.read_text(encoding="utf-8"))
            except (OSError, ValueError):  # half-written by a killed run
                owner = {}
            here = owner.get("hostname", socket.gethostname()) == socket.gethostname()
            if here and not _is_alive(int(owner.get("pid", 0))):
                lock.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not yet waited for by its parent does not."""
    try:
        return pid > 0 and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _json_lines(process: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """The events among the lines of output; what else is printed there is no event."""
    for line in process.stdout or ():
        with contextlib.suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                yield event


@contextlib.contextmanager
def _interrupted_after(process: subprocess.Popen[str], within: timedelta | None) -> Iterator[None]:
    """End a run that takes too long: as on Ctrl-C first, then for good."""
    if within is None:
        yield
        return
    softly = threading.Timer(within.total_seconds(), process.send_signal, (signal.SIGINT,))
    hard = (within + INTERRUPTED_ENDS).total_seconds()
    timers = [softly, threading.Timer(hard, os.killpg, (process.pid, signal.SIGKILL))]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()


@contextlib.contextmanager
def _interrupted_by(process: subprocess.Popen[str], stop: threading.Event | None) -> Iterator[None]:
    """End a run, as on Ctrl-C, when somebody sees that it cannot succeed."""
    if stop is None:
        yield
        return
    ended = threading.Event()

    def watch() -> None:
        while not ended.is_set():
            if stop.wait(_LOOK_SECONDS):
                process.send_signal(signal.SIGINT)
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def _interrupt(process: subprocess.Popen[str]) -> None:
    """Let the engine finish the step it is at, write its state and unlock, as on Ctrl-C at a shell; then end it."""
    process.send_signal(signal.SIGINT)
    killer = threading.Timer(INTERRUPTED_ENDS.total_seconds(), os.killpg, (process.pid, signal.SIGKILL))
    killer.daemon = True
    killer.start()
    try:
        for _ in process.stdout or ():  # it may still have much to say, and would wait for a reader
            pass
        process.wait()
    except BaseException:  # interrupted again: now at once
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    finally:
        killer.cancel()


def _take(
    event: Mapping[str, Any],
    summary: Summary,
    problems: list[str],
    failed: list[str],
    on_step: Callable[[str], None],
) -> None:
    """Add one engine event (the engine's own `apitype.EngineEvent`) to the summary."""
    if before := event.get("resourcePreEvent"):
        step = before["metadata"]
        if step["op"] != "same":
            on_step(f"{step['op']} {_short(step['urn'])}")
            summary.steps.append(
                {"op": step["op"], "type": step["type"], "urn": step["urn"], "diffs": step.get("diffs") or []}
            )
    elif broken := event.get("resOpFailedEvent"):
        failed.append(_short(broken["metadata"]["urn"]))
    elif result := policy_results.from_event(event):
        summary.policies.append(result)
    elif told := event.get("diagnosticEvent"):
        if told["severity"] == "error":
            problems.append(told["message"])
    elif end := event.get("summaryEvent"):
        summary.changes = dict(end["resourceChanges"] or {})


def _other_problems(problems: list[str]) -> list[str]:
    """What went wrong beside the engine's closing word."""
    return [line for text in problems for line in text.strip().splitlines() if line not in _CLOSING]


def _short(urn: str) -> str:
    """`urn:pulumi:local::trainyard::…$kubernetes:apps/v1:StatefulSet::etcd` -> `StatefulSet etcd`."""
    *_, kind, name = urn.split("::")
    return f"{kind.split(':')[-1]} {name}"
