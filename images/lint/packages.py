"""Rules on packages of the distribution, and on whatever else a build fetches."""

from __future__ import annotations

import re
from collections.abc import Iterator

from images.lint.rule import Problem, Subject, rule
from images.lint.shell import Call, all_calls, calls

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_APT = ("apt-get", "apt")
_SUM = re.compile(r"\bsha(256|384|512)sum\b[^\n;&|]*(\s-c\b|--check|\s-[a-z]*c[a-z]*\b)|\bgpg(v)?\b[^\n;&|]*--verify")
_GIVEN = re.compile(r"\b[0-9a-f]{64}\b|SHA(256|512)\b")
_COMMIT = re.compile(r"\b[0-9a-f]{40}\b")
_HTTP = re.compile(r"^(https?|ftp)://")


@rule(
    "apt-lists",
    "The lists of apt stay out of the layer",
    reason="They are 20 to 50 MB that are old the next day; every machine pulls them. A cache mount keeps them for the "
    "next build instead, if Debian's docker-clean does not delete them.",
    source="https://docs.docker.com/build/building/best-practices/#apt-get",
    remedy="Mount caches on /var/cache/apt and /var/lib/apt, or end the same RUN with `rm -rf /var/lib/apt/lists/*`.",
    severity="warning",
    wrong=f"{_BASE}\nRUN apt-get update && apt-get install -y --no-install-recommends tini\nUSER 65532\n",
    right=f"{_BASE}\nRUN apt-get update && apt-get install -y --no-install-recommends tini \\\n"
    " && rm -rf /var/lib/apt/lists/*\nUSER 65532\n",
)
def apt_lists(subject: Subject) -> Iterator[Problem]:
    """Look at every RUN that fetches the lists."""
    for one in subject.document.all("RUN"):
        made = calls(one)
        if not any(call.name in _APT and "update" in call.plain for call in made):
            continue
        mounted = any(mount.get("target", mount.get("dst", "")).startswith("/var/lib/apt") for mount in one.mounts())
        removed = any(call.name == "rm" and any("/var/lib/apt/lists" in word for word in call.plain) for call in made)
        if not mounted and not removed:
            yield Problem(one, "the lists of apt stay in the layer")


@rule(
    "apt-together",
    "apt-get update and install are one RUN",
    reason="Apart, the layer with the lists comes from the cache for weeks while packages change: the install fails "
    "with 404, or gives old packages.",
    source="https://docs.docker.com/build/building/best-practices/#apt-get",
    remedy="Write `apt-get update && apt-get install …` in one RUN.",
    wrong=f"{_BASE}\nRUN apt-get update && rm -rf /var/lib/apt/lists/*\n"
    "RUN apt-get install -y --no-install-recommends tini\nUSER 65532\n",
    right=f"{_BASE}\nRUN apt-get update && apt-get install -y --no-install-recommends tini \\\n"
    " && rm -rf /var/lib/apt/lists/*\nUSER 65532\n",
)
def apt_together(subject: Subject) -> Iterator[Problem]:
    """Look at every RUN that installs."""
    for one in subject.document.all("RUN"):
        verbs = [word for call in calls(one) if call.name in _APT for word in call.plain[:1]]
        if "install" in verbs and "update" not in verbs[: verbs.index("install")]:
            local = any(call.name in _APT and any("/" in word for word in call.plain[1:]) for call in calls(one))
            if not local:
                yield Problem(one, "it installs from lists of another layer")


@rule(
    "apt-upgrade",
    "No upgrade of the base",
    reason="The result depends on the day, and every upgraded file is in the image twice. A newer base by its digest "
    "has the same updates.",
    source="https://docs.docker.com/build/building/best-practices/#apt-get",
    remedy="Move the digest of the base on instead: `trainyard images pin`.",
    wrong=f"{_BASE}\nRUN apt-get update && apt-get upgrade -y && rm -rf /var/lib/apt/lists/*\nUSER 65532\n",
    right=f"{_BASE}\nRUN apt-get update && apt-get install -y --no-install-recommends tini \\\n"
    " && rm -rf /var/lib/apt/lists/*\nUSER 65532\n",
)
def apt_upgrade(subject: Subject) -> Iterator[Problem]:
    """Look at the verbs of apt."""
    for call in all_calls(subject.document):
        if call.name in _APT and set(call.plain[:1]) & {"upgrade", "dist-upgrade", "full-upgrade"}:
            yield Problem(call.at, f"{call.name} {call.plain[0]}")


@rule(
    "add-url",
    "ADD of an address has a checksum",
    reason="What the address gives can change, or be changed; nobody sees it in the Dockerfile.",
    source="https://docs.docker.com/reference/dockerfile/#add---checksum",
    remedy="Write `ADD --checksum=sha256:… URL PATH`; for git an address that ends with a commit.",
    wrong=f"{_BASE}\nADD https://example.com/a.tar.gz /tmp/\nUSER 65532\n",
    right=f"{_BASE}\nADD --checksum=sha256:{'0' * 64} https://example.com/a.tar.gz /tmp/\nUSER 65532\n",
)
def add_url(subject: Subject) -> Iterator[Problem]:
    """Look at the sources of ADD."""
    for one in subject.document.all("ADD"):
        for source in one.expanded[:-1]:
            remote = _HTTP.match(source) or source.startswith("git@")
            if remote and not one.flag("checksum") and not _COMMIT.search(source):
                yield Problem(one, f"ADD {source} without --checksum")


@rule(
    "download-verified",
    "Downloads are checked by a sum before they are used",
    reason="Whoever changes the file at that address runs as root in the build. Without a sum a cut download is also "
    "an image that fails later, elsewhere. Where the matrix says why it has no sum, this warns.",
    source="https://slsa.dev/spec/v1.0/threats",
    remedy='`echo "SUM  FILE" | sha256sum -c -` in the same RUN, or `ADD --checksum=…`. Never `curl … | sh`.',
    wrong=f"{_BASE}\nRUN curl -fsSLo /tmp/a.sh https://example.com/a.sh && sh /tmp/a.sh\nUSER 65532\n",
    right=f"{_BASE}\nRUN curl -fsSLo /tmp/a.sh https://example.com/a.sh \\\n"
    f" && echo '{'0' * 64}  /tmp/a.sh' | sha256sum -c - \\\n && sh /tmp/a.sh\nUSER 65532\n",
)
def download_verified(subject: Subject) -> Iterator[Problem]:
    """Look at every RUN that fetches something."""
    for one in subject.document.all("RUN"):
        made = calls(one)
        fetched = [call for call in made if call.name in {"curl", "wget"} or _script(call)]
        if not fetched:
            continue
        if _piped_to_shell(made):
            yield Problem(one, "a download goes straight into a shell")
        elif not _SUM.search(one.text) and not all(_script(call) and _GIVEN.search(call.text) for call in fetched):
            excuse = _without_sum(subject, one.text)
            if excuse:
                yield Problem(one, f"the EFA installer is not checked: {excuse}", "warning")
            else:
                yield Problem(one, f"what {fetched[0].name} fetches is used without a check")


def _script(call: Call) -> bool:
    """A script of ours that fetches an address, which it is given together with the sum."""
    return call.name.startswith("python") and any(_HTTP.match(word) for word in call.arguments)


def _piped_to_shell(made: list[Call]) -> bool:
    shells = {"sh", "bash", "dash", "python", "python3"}
    return any(
        call.name in shells and call.piped and any(before.name in {"curl", "wget"} for before in made[:number])
        for number, call in enumerate(made)
    )


def _without_sum(subject: Subject, text: str) -> str | None:
    efa = subject.row.efa if subject.row else None
    if efa is None or efa.sha256 is not None or "efa" not in text.lower():
        return None
    return efa.unpinned


@rule(
    "tls-off",
    "No check of TLS is turned off",
    reason="Then anybody between the build and the registry chooses what is installed. Networks that inspect TLS have "
    "a CA for it, which builds take without putting it into the image.",
    source="`trainyard images build --help` (--extra-ca).",
    remedy="Take the option away; behind a TLS-inspecting proxy build with `trainyard images build --extra-ca FILE`.",
    wrong=f"{_BASE}\nRUN pip install --require-hashes --no-cache-dir --trusted-host example.com -r r.txt\nUSER 65532\n",
    right=f"{_BASE}\nRUN pip install --require-hashes --no-cache-dir -r r.txt\nUSER 65532\n",
)
def tls_off(subject: Subject) -> Iterator[Problem]:
    """Look at options and variables that turn checks off."""
    options = {
        "curl": ("-k", "--insecure"),
        "wget": ("--no-check-certificate",),
        "pip": ("--trusted-host",),
        "uv": ("--allow-insecure-host",),
        "uv pip": ("--allow-insecure-host", "--trusted-host"),
    }
    for call in all_calls(subject.document):
        if call.name == "curl" and any(re.fullmatch(r"-[a-zA-Z]*k[a-zA-Z]*", word) for word in call.arguments):
            yield Problem(call.at, "curl -k")
        elif bad := [option for option in options.get(call.name, ()) if call.has(option)]:
            yield Problem(call.at, f"{call.name} {bad[0]}")
    off = re.compile(
        r"GIT_SSL_NO_VERIFY|http\.sslVerify[ =]+false|NODE_TLS_REJECT_UNAUTHORIZED=0|Verify-Peer[ \"=]+false"
        r"|PYTHONHTTPSVERIFY=0|--allow-unauthenticated|\[trusted=yes\]|PIP_TRUSTED_HOST|UV_INSECURE_HOST",
        re.IGNORECASE,
    )
    for one in subject.document.all("RUN", "ENV", "ARG", "COPY"):
        if found := off.search("=".join(one.words[:2]) if one.keyword == "ENV" else one.text):
            yield Problem(one, found[0])


@rule(
    "git-commit",
    "What git fetches is a commit",
    reason="Branches move, and tags can be moved; a commit's name is a sum over its content.",
    source="https://slsa.dev/spec/v1.0/threats",
    remedy='Fetch the tag, then compare: `test "$(git rev-parse HEAD)" = COMMIT`; or `git fetch origin COMMIT`.',
    wrong=f"{_BASE}\nRUN git clone https://example.com/a.git\nUSER 65532\n",
    right=f"{_BASE}\nARG COMMIT={'0' * 40}\nRUN git clone https://example.com/a.git /a \\\n"
    ' && git -C /a checkout "$COMMIT"\nUSER 65532\n',
)
def git_commit(subject: Subject) -> Iterator[Problem]:
    """Look for a commit beside every clone."""
    arguments = {
        name: value
        for one in subject.document.all("ARG", "ENV")
        for name, value in one.pairs()
        if _COMMIT.search(value)
    }
    for one in subject.document.all("RUN"):
        if not any(call.name == "git" and set(call.plain) & {"clone", "fetch", "pull"} for call in calls(one)):
            continue
        named = any(re.search(rf"\$\{{?{name}\b", one.text) for name in arguments)
        if not named and not _COMMIT.search(one.text):
            yield Problem(one, "git takes what the branch or tag is today")
