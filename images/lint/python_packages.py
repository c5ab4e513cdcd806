"""Rules on how Python packages come into the image."""

from __future__ import annotations

import re
from collections.abc import Iterator

from images.lint.rule import Problem, Subject, rule
from images.lint.shell import Call, calls

_BASE = f"FROM debian:bookworm-slim@sha256:{'0' * 64}"
_VERBS = {"pip": ("install", "download", "wheel"), "uv pip": ("install", "sync"), "uv": ("sync",)}
_INDEXES = ("-i", "--index-url", "--extra-index-url", "--index", "--default-index")


def installs(subject: Subject) -> Iterator[Call]:
    """Every program that installs Python packages."""
    for one in subject.document.all("RUN"):
        for call in calls(one):
            verb = next(iter(call.plain), "")
            if verb in _VERBS.get(call.name, ()):
                yield call


def environment_at(subject: Subject, call: Call) -> dict[str, str]:
    """Variables that a RUN has: of its stage, and those written before the program."""
    stage = subject.document.stage_of(call.at)
    found: dict[str, str] = {}
    if stage is not None:
        before = [
            one for one in stage.inherited("ENV", "ARG") if one.line < call.at.line or one not in stage.instructions
        ]
        for one in before:
            found.update(pair for pair in one.pairs())
    for name, value in re.findall(r"\b([A-Z][A-Z0-9_]+)=(\S*)", call.at.text):
        found.setdefault(name, value.strip("\"'"))
    return found


def _local(call: Call) -> bool:
    """Whether it installs a folder or a file of the build only, and takes nothing else with it."""
    wanted = [word for word in call.plain[1:] if word != "-"]
    return call.has("--no-deps") and bool(wanted) and all(re.match(r"^(\.|/|\$)", word) for word in wanted)


@rule(
    "python-hashes",
    "Python packages come from a lock with sums",
    reason="A version can be uploaded again under another file, and an index can be between the build and PyPI. With "
    "sums the build ends instead; without, nobody knows what is in the image.",
    source="https://pip.pypa.io/en/stable/topics/secure-installs/",
    remedy="Use `uv pip sync --require-hashes` or `pip install --require-hashes -r …`; or `uv sync --locked`.",
    wrong=f"{_BASE}\nRUN pip install --no-cache-dir torch==2.15.0\nUSER 65532\n",
    right=f"{_BASE}\nRUN pip install --no-cache-dir --require-hashes -r requirements.txt\nUSER 65532\n",
)
def python_hashes(subject: Subject) -> Iterator[Problem]:
    """Look at every installation."""
    for call in installs(subject):
        if call.name == "uv":
            proved = call.has("--locked", "--frozen")
        else:
            variables = environment_at(subject, call)
            proved = call.has("--require-hashes") or bool(
                variables.get("PIP_REQUIRE_HASHES" if call.name == "pip" else "UV_REQUIRE_HASHES")
            )
        if not proved and not _local(call):
            yield Problem(call.at, f"{call.name} {call.plain[0]} without sums")


@rule(
    "python-cache",
    "What pip and uv keep for the next time stays out of the layer",
    reason="Downloaded wheels of torch are 3 GB: in the layer they are pulled by every machine, in a cache mount the "
    "next build has them at once.",
    source="https://docs.docker.com/build/cache/optimize/#use-cache-mounts",
    remedy="`RUN --mount=type=cache,target=/var/cache/uv …`, or --no-cache-dir (pip), --no-cache (uv).",
    severity="warning",
    wrong=f"{_BASE}\nRUN pip install --require-hashes -r requirements.txt\nUSER 65532\n",
    right=f"{_BASE}\nRUN --mount=type=cache,target=/var/cache/pip \\\n"
    "    pip install --require-hashes -r requirements.txt\nUSER 65532\n",
)
def python_cache(subject: Subject) -> Iterator[Problem]:
    """Look for a mount or an option."""
    for call in installs(subject):
        variables = environment_at(subject, call)
        off = call.has("--no-cache-dir", "--no-cache", "-n") or any(
            variables.get(name) for name in ("PIP_NO_CACHE_DIR", "UV_NO_CACHE")
        )
        mounted = any(mount.get("type") == "cache" for mount in call.at.mounts())
        if not off and not mounted:
            yield Problem(call.at, f"{call.name} {call.plain[0]} leaves its cache in the layer")


@rule(
    "python-link-mode",
    "uv copies out of a cache mount",
    reason="A mount is another file system: uv cannot link from it, warns for every package and copies anyway; with "
    "links to it that worked, the files would be gone when the RUN ends.",
    source="https://docs.astral.sh/uv/guides/integration/docker/#caching",
    remedy="Set UV_LINK_MODE=copy in that stage.",
    severity="warning",
    wrong=f"{_BASE}\nRUN --mount=type=cache,target=/var/cache/uv uv pip sync --require-hashes r.txt\nUSER 65532\n",
    right=f"{_BASE}\nENV UV_LINK_MODE=copy\n"
    "RUN --mount=type=cache,target=/var/cache/uv uv pip sync --require-hashes r.txt\nUSER 65532\n",
)
def python_link_mode(subject: Subject) -> Iterator[Problem]:
    """Look at uv with a cache mount."""
    for call in installs(subject):
        mounted = any(mount.get("type") == "cache" for mount in call.at.mounts())
        copies = environment_at(subject, call).get("UV_LINK_MODE") == "copy" or call.has("--link-mode")
        if call.name in {"uv", "uv pip"} and mounted and not copies:
            yield Problem(call.at, "UV_LINK_MODE is not copy")


@rule(
    "python-byte-code",
    "Byte code does not carry the time of the build",
    reason="Byte code has the time of its source in it: two builds of the same inputs differ, and so does every layer "
    "above. Byte code by sum has no time; none at all is slower at each start only.",
    source="https://docs.python.org/3/library/compileall.html#cmdoption-compileall-invalidation-mode",
    remedy="pip: --no-compile; uv: leave UV_COMPILE_BYTECODE out; then `python -m compileall --invalidation-mode "
    "unchecked-hash`, or leave SOURCE_DATE_EPOCH set for them, which makes sums the default.",
    severity="warning",
    wrong=f"{_BASE}\nRUN pip install --no-cache-dir --require-hashes -r requirements.txt\nUSER 65532\n",
    right=f"{_BASE}\nRUN pip install --no-cache-dir --require-hashes --no-compile -r requirements.txt \\\n"
    " && python3 -m compileall -q --invalidation-mode unchecked-hash /opt/venv\nUSER 65532\n",
)
def python_byte_code(subject: Subject) -> Iterator[Problem]:
    """Look at everything that compiles, where SOURCE_DATE_EPOCH does not make sums the default."""
    compilers = [call for one in subject.document.all("RUN") for call in calls(one) if call.name == "compileall"]
    compilers = [call for call in compilers if not re.search(r"(un)?checked-hash", " ".join(call.arguments))]
    for call in installs(subject):
        if call.plain[:1] == ("download",):
            continue
        variables = environment_at(subject, call)
        if call.name == "pip":
            compiles = not call.has("--no-compile") and not variables.get("PIP_NO_COMPILE")
        else:
            compiles = call.has("--compile-bytecode", "--compile") or variables.get("UV_COMPILE_BYTECODE") in {
                "1",
                "true",
            }
        if compiles:
            compilers.append(call)
    for call in compilers:
        if "SOURCE_DATE_EPOCH" not in environment_at(subject, call) and _arrives(subject, call):
            yield Problem(call.at, f"{call.name} writes byte code with the times of the build")


def _arrives(subject: Subject, call: Call) -> bool:
    """Whether the result has what a program of an environment installs there: uv's own, mostly, stays in its stage."""
    document = subject.document
    stage = document.stage_of(call.at)
    if stage is None or stage in document.last.chain or call.path[:1] != "/":
        return True
    home = call.path.rsplit("/bin/", 1)[0]
    heirs = {each.name for each in document.stages if stage in each.chain and each.name}
    return any(
        source == home or source.startswith(f"{home}/") or home.startswith(f"{source.rstrip('/')}/")
        for one in document.all("COPY")
        if one.flag("from") in heirs
        for source in one.expanded[:-1]
    )


@rule(
    "python-system",
    "Packages go into an environment of their own, not into the distribution's Python",
    reason="Debian marks its Python as its own: pip over it breaks packages of apt, and an upgrade breaks pip's.",
    source="https://peps.python.org/pep-0668/",
    remedy="Make one with `python3 -m venv`, and COPY --from it as a whole.",
    wrong=f"{_BASE}\nRUN pip install --break-system-packages --no-cache-dir --require-hashes -r r.txt\nUSER 65532\n",
    right=f"{_BASE}\nRUN python3 -m venv /opt/venv \\\n"
    " && /opt/venv/bin/pip install --no-cache-dir --require-hashes -r r.txt\nUSER 65532\n",
)
def python_system(subject: Subject) -> Iterator[Problem]:
    """Look at the option that breaks the mark."""
    for call in installs(subject):
        if call.has("--break-system-packages"):
            yield Problem(call.at, f"{call.name} writes into the distribution's Python")


@rule(
    "python-index",
    "No address of a package index in the Dockerfile or the lock",
    reason="With two indexes a package of the same name on the other one wins (dependency confusion), an address may "
    "carry a password, and a mirror of one company is not there for others.",
    source="https://docs.astral.sh/uv/concepts/indexes/",
    remedy="Configure the builder (UV_DEFAULT_INDEX, pip.conf by a secret mount), or build with --torch-index.",
    wrong=f"{_BASE}\nRUN pip install --no-cache-dir --require-hashes --extra-index-url https://example.com/simple "
    "-r r.txt\nUSER 65532\n",
    right=f"{_BASE}\nRUN pip install --no-cache-dir --require-hashes -r r.txt\nUSER 65532\n",
)
def python_index(subject: Subject) -> Iterator[Problem]:
    """Look at options with a written address, and at the lock."""
    for call in installs(subject):
        for number, word in enumerate(call.arguments):
            name, _, value = word.partition("=")
            value = value or " ".join(call.arguments[number + 1 : number + 2])
            if name in _INDEXES and "://" in value:
                yield Problem(call.at, f"{name} {value}")
    for one in subject.document.all("ENV"):
        for name, value in one.pairs():
            if (
                name in {"PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "UV_INDEX", "UV_INDEX_URL", "UV_DEFAULT_INDEX"}
                and value
            ):
                yield Problem(one, f"{name} stays in the image")
    for name in subject.files or {}:
        if re.fullmatch(r"(.*/)?requirements[^/]*\.txt", name):
            for number, line in enumerate(subject.lines_of(name), 1):
                if re.match(r"\s*(-i|--index-url|--extra-index-url|--find-links|-f)\b", line):
                    yield Problem(number, line.strip().split("://")[0], file=name)
