"""`trainyard images build`: rows become images, by whichever tool is there; archives, pushes, the lock of a stack."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.cli import options
from infra.cli.console import Steps, counted, print_json, row, show, stderr, table
from infra.cli.images import additions
from infra.errors import UsageError

if TYPE_CHECKING:
    from images.builders import Built, Tool
    from images.context import Context
    from images.matrix import Architecture, Row
    from images.render import Options
    from infra.cli.workspace import Workspace


_ADDRESS = re.compile(r"https?://[!-~]+")
_LAST_SECOND = 253_402_300_799  # of the year 9999, as far as dates of images go


def register(app: typer.Typer) -> None:
    """Add this module's command."""
    app.command()(build)


def build(
    rows: Annotated[
        list[str] | None, typer.Argument(metavar="[ROW]...", help="Rows of the matrix: cpu, controller, torch2.15-cpu.")
    ] = None,
    stack: Annotated[
        str | None, typer.Option("-s", "--stack", help="All rows that this stack needs, for its machines.")
    ] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", help="docker, podman or buildah; absent: the first that is there.")
    ] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Name of the image; only with one row.")] = None,
    registry: Annotated[
        str | None,
        typer.Option("--registry", metavar="REGISTRY/PATH", help="Names begin with it: REGISTRY/PATH/training:…"),
    ] = None,
    platform: Annotated[
        str | None, typer.Option("--platform", metavar="linux/ARCH", help="amd64 or arm64; absent: this computer's.")
    ] = None,
    base: additions.Base = None,
    requirements: additions.Requirements = None,
    source: additions.Source = None,
    apt: additions.Apt = None,
    compile_: additions.Compile = False,
    index: Annotated[
        str | None,
        typer.Option(
            "--index",
            metavar="URL",
            envvar="TRAINYARD_INDEX",
            help="Package index instead of the public one, such as a mirror of yours; nothing of it is in the image.",
        ),
    ] = None,
    extra_ca: Annotated[
        Path | None,
        typer.Option(
            "--extra-ca",
            metavar="FILE",
            help="PEM file of authorities that the build trusts as well (networks that inspect TLS); never in the"
            " image.",
        ),
    ] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Take no step from an earlier build.")] = False,
    archive: Annotated[
        Path | None,
        typer.Option("--archive", metavar="FILE", help="Write the image as OCI archive as well; only with one row."),
    ] = None,
    push: Annotated[
        bool,
        typer.Option("--push", help="Push it: to the stack's registry (-s), else to where its name says."),
    ] = False,
    json: options.Json = False,
) -> None:
    """Build images with docker, podman or buildah, whichever is there; the same inputs give the same image id.

    With -s STACK --push the digests go into images.STACK.toml, from which settings and job templates take them.

    Example: [bold]trainyard images build cpu --archive cpu.tar[/bold],
    [bold]trainyard images build -s prod --push[/bold]
    """
    from images.builders import find_tool  # noqa: PLC0415
    from images.render import Options, render  # noqa: PLC0415
    from infra.cli.images import pushing  # noqa: PLC0415

    workspace = _open(stack)
    chosen = list(_chosen(rows or [], workspace, platform))
    _require_fitting(chosen, workspace, tag=tag, registry=registry, index=index, archive=archive, push=push)
    additions_ = Options(requirements=requirements, source=source, apt=tuple(apt or ()), compile=compile_, base=base)
    wish = _Wish(
        options=additions_,
        base=base,
        index=index,
        extra_ca=extra_ca,
        no_cache=no_cache,
        timestamp=_timestamp(),
        revision=_revision(),
    )
    contexts = [render(one, wish.options) for one, _ in chosen]  # mistakes before the first build begins
    if left_out := dict.fromkeys(name for context in contexts for name in context.left_out):
        names = ", ".join(left_out)
        stderr().print(f"Left out, since names that begin with a dot are never copied: {names}.", markup=False)
    builder = find_tool(tool)
    target = pushing.destination(workspace, [one for one, _ in chosen]) if push else None
    steps, results = Steps(), []
    for (one, architecture), context in zip(chosen, contexts, strict=True):
        with steps.step(f"{one.name} for {architecture}, by {builder.name}"):
            built = wish.build(builder, context, architecture, tag or _name(one, registry), steps)
            steps.note(f"{built.tag}, {built.size / 1e6:.0f} MB, {built.image_id[:19]}")
        result = Result(built)
        if archive:
            with steps.step(f"writing the archive {archive}"):
                builder.save(built.tag, archive, steps.note)
            result.archive = archive
        if target:
            with steps.step(f"push of {one.name}"):
                result.reference = target.push(builder, one, built, steps.note)
                steps.note(result.reference)
            if workspace:
                result.lock = pushing.record(workspace, one, result.reference)
        results.append(result)
    _show(results, json=json)


@dataclass(frozen=True, kw_only=True)
class _Wish:
    """What holds for all rows of one call."""

    options: Options
    base: str | None
    index: str | None
    extra_ca: Path | None
    no_cache: bool
    timestamp: int
    revision: str

    def build(self, builder: Tool, context: Context, architecture: str, tag: str, steps: Steps) -> Built:
        """Build one row; its context is in a folder only meanwhile."""
        from images.builders.built import Order  # noqa: PLC0415

        with tempfile.TemporaryDirectory(prefix="trainyard-context-") as temporary:
            folder = Path(temporary) / context.row.name
            context.write(folder)
            order = Order(
                row=context.row.name,
                context=folder,
                tag=tag,
                architecture=architecture,
                log=_log(context.row, architecture),
                base=self.base,
                extra_ca=self.extra_ca,
                index=self.index,
                no_cache=self.no_cache,
                timestamp=self.timestamp,
                arguments={"REVISION": self.revision},
            )
            return builder.build(order, steps.note)


@dataclass
class Result:
    """What became of one row."""

    built: Built
    archive: Path | None = None
    reference: str | None = None
    """In its registry, by digest."""
    lock: str | None = None
    """File of the stack that has the reference."""

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            **self.built.__dict__,
            "seconds": round(self.built.seconds, 1),
            "archive": str(self.archive) if self.archive else None,
            "reference": self.reference,
            "lock": self.lock,
        }


def _open(stack: str | None) -> Workspace | None:
    from infra.cli.workspace import Workspace  # noqa: PLC0415

    return Workspace.open(stack) if stack else None


def _chosen(
    names: Sequence[str], workspace: Workspace | None, platform: str | None
) -> Iterator[tuple[Row, Architecture]]:
    """The rows to build, and for which architecture each."""
    from images.builders.built import this_architecture  # noqa: PLC0415
    from images.matrix import matrix  # noqa: PLC0415

    if not names and workspace is None:
        raise UsageError(
            "build what? Name rows (`trainyard images matrix` lists them), or -s STACK for all that a stack needs"
        )
    wanted = _architecture(platform) if platform else None
    if names:
        rows = {found.name: found for found in map(matrix().row, names)}
        for found in rows.values():
            yield found, _fitting(found, wanted or this_architecture())
        return
    from infra.wiring.images import architectures_for, rows_for_stack  # noqa: PLC0415

    assert workspace is not None  # noqa: S101 - for the type checker: see above
    for found in rows_for_stack(workspace.settings):
        machines = architectures_for(workspace.settings, found)
        own = [one for one in machines if one == (wanted or this_architecture())]
        if workspace.settings.aws is not None and len(machines) > 1 and wanted is None:
            raise UsageError(
                f"stack {workspace.stack} runs {found.name} on {' and '.join(machines)}, and one build is for one of"
                " them: --platform names it. An image of both: `trainyard images render` and its bake file"
            )
        yield found, _fitting(found, own[0] if own else wanted or machines[0])


def _architecture(platform: str) -> str:
    system, _, architecture = platform.rpartition("/")
    if system not in ("", "linux") or architecture not in ("amd64", "arm64"):
        raise UsageError(f"--platform {platform}: there are linux/amd64 and linux/arm64")
    return architecture


def _fitting(row: Row, architecture: str) -> Architecture:
    for one in row.architectures:
        if one == architecture:
            return one
    raise UsageError(
        f"{row.name} is for {' and '.join(row.architectures)}, not for {architecture}; `trainyard images matrix` says"
        " why, --platform takes another"
    )


def _require_fitting(
    chosen: Sequence[tuple[Row, Architecture]],
    workspace: Workspace | None,
    *,
    tag: str | None,
    registry: str | None,
    index: str | None,
    archive: Path | None,
    push: bool,
) -> None:
    """Options that contradict each other, or that no tool could take; all of them in one message."""
    from infra.wiring.references import is_pinned, is_reference  # noqa: PLC0415

    mistakes = []
    if len(chosen) > 1:
        names = ", ".join(one.name for one, _ in chosen)
        mistakes += [
            f"{option} is for one image, and there are {counted(len(chosen), 'row')}: {names}"
            for option, given in (("--tag", tag), ("--archive", archive))
            if given
        ]
    if tag and registry:
        mistakes.append("--tag is the whole name: leave --registry out, or put it into the tag")
    on_aws = workspace is not None and workspace.settings.aws is not None
    if push and on_aws and (tag or registry):
        mistakes.append(
            "with -s, --push goes to the stack's own registry, under names that say what is in them: leave --tag and"
            " --registry out"
        )
    if push and not on_aws and not registry and not _has_registry(tag):
        mistakes.append("push where? --registry REGISTRY/PATH, or the whole name: --tag REGISTRY/PATH/training:1")
    if tag is not None and (not is_reference(tag) or is_pinned(tag)):
        mistakes.append(f"--tag {tag!r} is no name of an image, as in registry.example/team/training:1")
    if registry is not None and not is_reference(f"{registry.rstrip('/')}/training:1"):
        mistakes.append(
            f"--registry {registry!r} is no registry with a path in small letters, as in registry.example/team"
        )
    if index and not _ADDRESS.fullmatch(index):  # not shown: it may hold a password
        mistakes.append("--index (or TRAINYARD_INDEX) is no address, as in https://packages.example/simple")
    if archive and archive.is_dir():
        mistakes.append(f"--archive {archive} is a folder: name the file in it, as in {archive / 'image.tar'}")
    elif archive and not archive.absolute().parent.is_dir():
        mistakes.append(f"--archive {archive}: there is no folder {archive.parent}")
    if mistakes:
        raise UsageError("\n".join(["this cannot be built so:", *(f"  {one}" for one in mistakes)]))


def _has_registry(tag: str | None) -> bool:
    first, slash, _ = (tag or "").partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")


def _timestamp() -> int:
    from images.builders.built import EPOCH  # noqa: PLC0415

    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    if not text:
        return EPOCH
    if not re.fullmatch(r"[0-9]{1,12}", text) or int(text) > _LAST_SECOND:
        raise UsageError(f"SOURCE_DATE_EPOCH is {text!r}: it must be a number, seconds since 1970")
    return int(text)


def _revision() -> str:
    """The last commit that changed what goes into images; empty where there is no git."""
    from infra.clusters import CHECKOUT  # noqa: PLC0415

    parts = ["--", "images", "training"]
    try:
        last = _git(CHECKOUT, "log", "-1", "--format=%H", *parts)
        changed = _git(CHECKOUT, "status", "--porcelain", *parts)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{last}-modified" if last and changed else last


def _git(folder: Path, *arguments: str) -> str:
    ran = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=60)
    return ran.stdout.strip()


def _name(row: Row, registry: str | None) -> str:
    """How an image is called: by its kind, and by what distinguishes rows of that kind."""
    from images.source import project_version  # noqa: PLC0415

    version = project_version() if row.kind == "controller" else row.name.removeprefix("nccl-tests-")
    return f"{(registry or 'trainyard').rstrip('/')}/{row.kind}:{version}"


def _log(row: Row, architecture: str) -> Path:
    from infra.local.engines.cache import cache_directory  # noqa: PLC0415

    return cache_directory() / "images" / "logs" / f"{row.name}-{architecture}.log"


def _show(results: Sequence[Result], *, json: bool) -> None:
    if json:
        print_json({"images": [result.document() for result in results]})
        return
    shown = table("row", "image", "id", "architecture", "MB", "seconds")
    for result in results:
        one = result.built
        size = f"{one.size / 1e6:.0f}"
        row(
            shown, one.row, result.reference or one.tag, one.image_id[:19], one.architecture, size, f"{one.seconds:.1f}"
        )
    show(shown)
    for lock in dict.fromkeys(result.lock for result in results if result.lock):
        stderr().print(f"{lock} has the digests now; commit it")
