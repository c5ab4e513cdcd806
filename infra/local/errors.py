"""The one error that the local cluster raises for whatever a user can cause or cure."""

from infra.errors import TrainyardError


class LocalClusterError(TrainyardError):
    """A plain sentence for a person: what happened, why, and the next command to run.

    Attributes:
        what: What happened, one sentence without a full stop.
        why: The reason, with the file, port or process by name; may span several lines.
        remedy: The next command or change that helps.
    """

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append(f"  why: {self.why}")
        if self.remedy:
            lines.append(f"  next: {self.remedy}")
        return "\n".join(lines)
