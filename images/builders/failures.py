"""What a tool's output means, in a sentence with the next thing to do. Pure: text in, text out."""

from __future__ import annotations

import errno
import re
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_SHOWN = 8  # last lines of the output in a message that knows no better
_NOISE = re.compile(r"^\s*$|^subprocess exited with status|^(Error: )?building at STEP|^Error: exit status")
_LINE_WIDTH = 300  # buildah prints its whole state in one line


@dataclass(frozen=True)
class Work:
    """What was being done."""

    tool: str
    what: str
    """`the build of cpu`, `the push of trainyard/training:cpu`."""
    architecture: str = ""
    base: str = ""
    """Base image that was asked for; empty: the row's own."""
    extra_ca: bool = False
    """Whether an authority was given for the build."""
    pushing: bool = False
    """Whether an image goes to a registry."""


_FREE = {
    "docker": "`docker buildx prune` and `docker image prune`",
    "podman": "`podman image prune` (with `podman system df` one sees of what)",
    "buildah": "`buildah rm --all` and `buildah rmi --prune`",
}


def _full(work: Work, _: str) -> str:
    return (
        f"the disk is full where {work.tool} keeps its layers or their temporary files, or where it writes to. Free"
        " some, e.g. by"
        f" {_FREE.get(work.tool, 'removing images')}; an image with torch and CUDA needs up to 30 GB while it is built"
    )


def _untrusted(work: Work, line: str) -> str:
    if work.pushing or ("x509" in line and re.search(r"registry|source metadata", line)):
        return (
            f"{work.tool} does not trust the certificate of the registry. If your network inspects TLS, give its"
            " authority to the tool itself (/etc/docker/certs.d/REGISTRY/ca.crt, or"
            " /etc/containers/certs.d/REGISTRY/ca.crt): --extra-ca is for what runs inside the build"
        )
    if work.extra_ca:
        return (
            "a server showed a certificate that neither this computer's authorities nor those of --extra-ca have"
            " signed. Look whether that file holds the root of the authority that signs for your network"
        )
    return (
        "a server showed a certificate of an authority that the base image does not know. If your network inspects"
        " TLS, name its authority: --extra-ca FILE (PEM). Only the build sees it; it is not in the image"
    )


def _apt(_: Work, __: str) -> str:
    return (
        "apt reads from a source by HTTPS whose certificate the base image does not trust; --extra-ca is not for apt."
        " Name a base image whose sources are those of Debian or Ubuntu (by HTTP: what they hold is signed), or that"
        " knows the authority: --base-image"
    )


def _base(work: Work, line: str) -> str:
    name = work.base or "the row's base image"
    if "localhost" in line:
        return (
            f"{name} is not in the store of {work.tool}, at least not for {work.architecture}. Import it first:"
            " docs/how-to/images.md, without a registry"
        )
    if re.search(r"unauthorized|denied|authentication required|no basic auth", line):
        return f"the registry of {name} wants a login: `{work.tool} login REGISTRY`, then this again"
    if re.search(r"manifest unknown|not found", line):
        return (
            f"{name} is not in its registry (any more). Look for its successor and put it into images/matrix.toml, or"
            " name another: --base-image"
        )
    return (
        f"the registry of {name} cannot be reached from here. Name a mirror of yours or a local image: --base-image"
        " REFERENCE; how to make one without any registry: docs/how-to/images.md"
    )


def _architecture(work: Work, _: str) -> str:
    return (
        f"this computer cannot run programs of {work.architecture or 'the image'}. Build on such a machine, or install"
        " emulation (the package qemu-user-static with binfmt-support)"
    )


def _other_base(work: Work, _: str) -> str:
    return (
        f"the base image does not exist for {work.architecture}. `trainyard images matrix` lists the architectures of"
        " each row"
    )


def _unreachable(work: Work, line: str) -> str:
    proxy = (
        "the proxies of ~/.docker/config.json, which docker takes instead of HTTPS_PROXY"
        if work.tool == "docker"
        else "HTTPS_PROXY, which the build takes over"
    )
    return (
        "a name could not be looked up, or a server not be reached, from inside the build"
        f" ({_cut(line)}). Look at this computer's network and DNS, and at {proxy}"
    )


def _sums(_: Work, line: str) -> str:
    return (
        f"a package is not the one of the lock ({_cut(line)}). If you name an index by --torch-index, its builds have"
        " sums of their own; else something between here and the index changes files"
    )


def _memory(_: Work, __: str) -> str:
    return "the kernel ended a step, as it does where memory runs out. Give the build more, or let less run beside it"


def _isolation(_: Work, __: str) -> str:
    return (
        "this computer does not let the tool make containers (it is one itself, perhaps). buildah can do without:"
        " BUILDAH_ISOLATION=chroot trainyard images build --tool buildah …"
    )


def _refused(work: Work, _: str) -> str:
    return f"the registry does not let you push there. Log in (`{work.tool} login REGISTRY`) and look at your rights"


def _away(_: Work, line: str) -> str:
    return f"the registry cannot be reached ({_cut(line)})"


def _immutable(_: Work, __: str) -> str:
    return "that tag is taken, and the registry does not let tags change. Push under another: --tag"


def _no_repository(_: Work, __: str) -> str:
    return "there is no such repository in the registry. Make it first; a stack makes its own: `trainyard up -s STACK`"


Sentence = Callable[[Work, str], str]

_TLS = (
    r"certificate verify failed|CERTIFICATE_VERIFY_FAILED|signed by unknown authority|SSL certificate problem"
    r"|invalid peer certificate|UnknownIssuer|self[- ]signed certificate"
)
_PULL = (
    r"creating build container|initializing source docker|failed to resolve source metadata|pull access denied"
    r"|unable to copy from source docker|short-name|error pulling image"
)
_NETWORK = (
    r"[Nn]ame or service not known|[Tt]emporary failure (in name resolution|resolving)|[Cc]ould not resolve"
    r"|no such host|[Cc]onnection refused|Network is unreachable|i/o timeout|failed to lookup address|dns error"
)
_OF_ALL: Sequence[tuple[str, Sentence]] = (
    (r"no space left on device|disk quota exceeded|ENOSPC", _full),
    (r"Certificate verification failed|certificate is NOT trusted", _apt),
    (_TLS, _untrusted),
)
_OF_PUSHES: Sequence[tuple[str, Sentence]] = (
    (r"tag invalid|repository is immutable|ImageTagAlreadyExists", _immutable),
    (r"name unknown|repository .* does not exist|RepositoryNotFound", _no_repository),
    (r"denied|unauthorized|authentication required|no basic auth credentials|requested access", _refused),
    (_NETWORK, _away),
)
_OF_BUILDS: Sequence[tuple[str, Sentence]] = (
    (r"[Ee]xec format error", _architecture),
    (r"no (image|child|match) .*(for platform|in manifest list|in image index)|no match for platform", _other_base),
    (_PULL, _base),
    (r"[Hh]ash mismatch|DO NOT MATCH THE HASHES|checksum mismatch", _sums),
    (r"signal: killed|exit (status|code)[: ]*137", _memory),
    (r"running runtime|creating container for|error creating user namespace|newuidmap|unshare", _isolation),
    (_NETWORK, _unreachable),
)


def sentence(work: Work, code: int, tail: Sequence[str], step: str, log: Path | None) -> str:
    """Why a tool failed and what to do.

    Args:
        work: what was being done.
        code: exit code; that of a signal is its number below zero.
        tail: last lines of the output.
        step: where it was; empty if unknown.
        log: where all of the output is.
    """
    where = f" at {step}" if step else ""
    kept = f" The whole output: {log}" if log else ""
    for pattern, explain in (*_OF_ALL, *(_OF_PUSHES if work.pushing else _OF_BUILDS)):
        # The last line that fits: tools print the cause once more when they give up.
        line = next((line for line in reversed(tail) if re.search(pattern, line)), None)
        if line is not None:
            return f"{work.what} failed{where}: {explain(work, line)}.{kept}"
    said = "".join(f"\n  {_cut(line)}" for line in [line for line in tail if not _NOISE.match(line)][-_SHOWN:])
    ended = f"{work.tool} ended with {code}" if code >= 0 else f"{signal.Signals(-code).name} ended {work.tool}"
    return f"{work.what} failed{where}: {ended}.{kept}{' It ends:' + said if said else ''}"


def of_file(error: OSError, path: Path) -> str:
    """A file of ours could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk is full: {path} cannot be written. Free some space and run this again"
    return f"{path} cannot be written: {error.strerror or error}"


def _cut(line: str) -> str:
    line = " ".join(line.split())
    return line if len(line) <= _LINE_WIDTH else "…" + line[-_LINE_WIDTH:]
