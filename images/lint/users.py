"""Rules on the user that the image runs as."""

from __future__ import annotations

from collections.abc import Iterator

from images.lint.document import Instruction
from images.lint.rule import Problem, Subject, rule
from infra.wiring.naming import UNPRIVILEGED

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"


def _last(subject: Subject) -> Instruction | None:
    users = [one for one in subject.document.last.inherited("USER") if one.expanded]
    return users[-1] if users else None


@rule(
    "user-root",
    "The image runs as an ordinary user",
    reason="The jobs' namespace refuses pods that run as root (Pod Security, `restricted`), and a process that escapes "
    "from its container as root is root on the machine. EFA needs its devices and locked memory, not root.",
    source="https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted",
    remedy=f"End the last stage with `USER {UNPRIVILEGED}:{UNPRIVILEGED}`.",
    wrong=f"{_BASE}\nUSER 65532\nUSER root\n",
    right=f"{_BASE}\nUSER 65532:65532\n",
)
def user_root(subject: Subject) -> Iterator[Problem]:
    """Look at the USER that is in force at the end."""
    last = _last(subject)
    if last is None:
        yield Problem(subject.document.last, "the last stage has no USER: it runs as the base's, which is root mostly")
    elif last.expanded[0].split(":")[0] in {"0", "root"}:
        yield Problem(last, "the last USER is root")


@rule(
    "user-numeric",
    "The user is a number",
    reason="With `runAsNonRoot` the kubelet must know before the start that the user is not root: of a name it cannot, "
    "and the container ends with CreateContainerConfigError.",
    source="https://github.com/kubernetes/kubernetes/issues/56503",
    remedy=f"Write the number: `USER {UNPRIVILEGED}:{UNPRIVILEGED}`.",
    wrong=f"{_BASE}\nUSER trainyard\n",
    right=f"{_BASE}\nUSER 65532:65532\n",
)
def user_numeric(subject: Subject) -> Iterator[Problem]:
    """Look at the USER that is in force at the end."""
    last = _last(subject)
    if last is None:
        return
    user, _, group = last.expanded[0].partition(":")
    if user not in {"0", "root"} and not (user.isdigit() and (not group or group.isdigit())):
        yield Problem(last, f"USER {last.expanded[0]} is a name")


@rule(
    "user-number",
    "The user is the one as which the stack's pods run",
    reason="Jobs run as this number, whatever the image says: files that the image gives to another user cannot be "
    "written there.",
    source="`UNPRIVILEGED` in infra/wiring/naming.py.",
    remedy=f"Write `USER {UNPRIVILEGED}:{UNPRIVILEGED}`.",
    row="torch2.15-cpu",
    wrong=f"{_BASE}\nUSER 10001:10001\n",
    right=f"{_BASE}\nUSER 65532:65532\n",
)
def user_number(subject: Subject) -> Iterator[Problem]:
    """Compare with the number of the stack."""
    last = _last(subject)
    if subject.row is None or last is None:
        return
    parts = last.expanded[0].split(":")
    if all(part.isdigit() and part != "0" for part in parts) and set(parts) != {str(UNPRIVILEGED)}:
        yield Problem(last, f"USER {last.expanded[0]}; the stack's pods run as {UNPRIVILEGED}:{UNPRIVILEGED}")
