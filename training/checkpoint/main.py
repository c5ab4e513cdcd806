"""`python -m training checkpoints list|verify|prune|export PLACE`: look after a folder of checkpoints, or a URL.

argparse, as the launcher has: this runs in the training image, which carries no library for command lines.
"""

import argparse
import json
import os
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from training.checkpoint import contents, disk
from training.checkpoint.folder import Checkpoint, CheckpointError, CheckpointFolder, verify
from training.checkpoint.remote import Remote, shown
from training.checkpoint.retention import Retention
from training.launch import exit_codes

PROGRAM: Final = "python -m training checkpoints"
# https://github.com/huggingface/safetensors#format
_SAFETENSORS: Final = {
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.int32: "I32",
    torch.int64: "I64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float32: "F32",
    torch.float64: "F64",
}


def run(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code: 0, 1 (failed, or something is damaged) or 2 (usage)."""
    args = _parser().parse_args(argv)
    try:
        code: int = args.command(args)
    except (CheckpointError, ValueError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return exit_codes.FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Look after checkpoints, in a folder or behind a URL.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("place", help="what holds the checkpoints: a folder, or a URL such as s3://bucket/prefix")
        sub.set_defaults(command=function)
        return sub

    listing = command("list", _list, "Checkpoints, the newest first; sizes are compared, contents are not.")
    verifying = command(
        "verify", _verify, "Read every checkpoint and compare it with its digests; 1 if one is damaged."
    )
    verifying.add_argument("--step", type=int, help="only this one")
    pruning = command("prune", _prune, "Delete the checkpoints that no rule keeps. What stays is read first.")
    pruning.add_argument("--last", type=int, default=3, metavar="N", help="keep the newest N (default 3, at least 1)")
    pruning.add_argument("--every", type=int, default=0, metavar="STEPS", help="keep those of every so many steps")
    pruning.add_argument("--best", type=int, default=0, metavar="N", help="keep the best N by --metric")
    pruning.add_argument("--metric", default="", help="name of a figure that was saved with the checkpoints")
    pruning.add_argument("--mode", choices=("max", "min"), default="max", help="which is best (default max)")
    exporting = command("export", _export, "Write the model of a checkpoint as one plain file.")
    exporting.add_argument("output", type=Path, help="NAME.safetensors, or NAME.pt for torch.load")
    exporting.add_argument("--step", type=int, help="of this checkpoint (default: the newest that is whole)")
    exporting.add_argument("--key", default="model", help="which part of the state (default: model)")
    for sub in (listing, verifying, pruning, exporting):
        sub.add_argument("--json", action="store_true", help="one JSON document on standard output")
    return parser


class _Folder:
    """Checkpoints in a folder."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise CheckpointError(f"there is no folder {root}")
        self.shown = str(root)
        self._folder = CheckpointFolder(root)

    def published(self) -> list[str]:
        """Names, the newest first."""
        return [path.name for path in self._folder.published()]

    def path(self, name: str) -> str:
        """Where one is."""
        return str(self._folder.root / name)

    def verify(self, name: str, *, contents: bool) -> Checkpoint:
        """Check one."""
        return verify(self._folder.root / name, contents=contents)

    def prune(self, rules: Retention) -> list[str]:
        """Delete what no rule keeps."""
        return [path.name for path in self._folder.prune(rules, digests=True)]

    def load(self, step: int | None, key: str) -> tuple[int, Any] | None:
        """Step and a part of the state of one, or of the newest that is whole."""
        checkpoint = self._folder.newest() if step is None else verify(self._folder.root / f"step-{step:09d}")
        return (checkpoint.step, checkpoint.load(only=key)[key]) if checkpoint else None


class _Url:
    """Checkpoints behind a URL."""

    def __init__(self, url: str) -> None:
        self.shown = shown(url)
        self._remote = Remote(url)

    def published(self) -> list[str]:
        """Names, the newest first."""
        return [name.removesuffix(".json") for name in self._remote.published()]

    def path(self, name: str) -> str:
        """Where one is."""
        return f"{self.shown}/{name}"

    def verify(self, name: str, *, contents: bool) -> Checkpoint:
        """Check one."""
        return self._remote.verify(f"{name}.json", contents=contents)

    def prune(self, rules: Retention) -> list[str]:
        """Delete what no rule keeps, and what uploads that broke off have left."""
        gone = [name.removesuffix(".json") for name in self._remote.prune(rules, digests=True)]
        self._remote.sweep()
        return gone

    def load(self, step: int | None, key: str) -> tuple[int, Any] | None:
        """Step and a part of the state of one, or of the newest that is whole."""
        with tempfile.TemporaryDirectory(prefix="checkpoints-") as folder:
            checkpoint = self._remote.fetch(CheckpointFolder(Path(folder)), step=step)
            return (checkpoint.step, checkpoint.load(only=key)[key]) if checkpoint else None


def _open(args: argparse.Namespace) -> _Folder | _Url:
    return _Url(args.place) if "://" in args.place else _Folder(Path(args.place))


def _names(place: _Folder | _Url, step: int | None) -> list[str]:
    names = place.published()
    if step is not None:
        names = [name for name in names if name == f"step-{step:09d}"]
        if not names:
            raise CheckpointError(f"{place.shown} has no checkpoint of step {step}")
    return names


def _list(args: argparse.Namespace) -> int:
    place = _open(args)
    _report(args, place, _examine(place, place.published(), digests=False))
    return exit_codes.FINISHED


def _verify(args: argparse.Namespace) -> int:
    place = _open(args)
    found = _examine(place, _names(place, args.step), digests=True)
    _report(args, place, found)
    return exit_codes.FAILED if any(isinstance(result, CheckpointError) for result in found.values()) else 0


def _prune(args: argparse.Namespace) -> int:
    rules = Retention(last=args.last, every=args.every, best=args.best, metric=args.metric, mode=args.mode)
    place = _open(args)
    gone = [place.path(name) for name in place.prune(rules)]
    if args.json:
        _print_json({"deleted": gone})
    else:
        for path in gone:
            print(f"deleted {path}")
    return exit_codes.FINISHED


def _export(args: argparse.Namespace) -> int:
    if args.output.suffix not in {".safetensors", ".pt"}:
        raise ValueError(f"{args.output} must end in .safetensors or .pt, which says the format")
    place = _open(args)
    if args.step is not None:
        _names(place, args.step)
    loaded = place.load(args.step, args.key)
    if loaded is None:
        raise CheckpointError(f"{place.shown} has no checkpoint that is whole")
    step, state = loaded
    temporary = args.output.with_name(f".{args.output.name}-{os.getpid()}")
    try:
        if args.output.suffix == ".pt":
            torch.save(state, temporary)
        else:
            _write_safetensors(temporary, state, {"step": str(step)})
        disk.rename(temporary, args.output)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{args.output} cannot be written: {error}") from error
    finally:
        disk.remove(temporary)
    if args.json:
        _print_json({"step": step, "output": str(args.output)})
    else:
        print(f"{args.output}: '{args.key}' of step {step}")
    return exit_codes.FINISHED


def _write_safetensors(path: Path, state: Any, metadata: Mapping[str, str]) -> None:
    _, tensors = contents.split({"": state} if isinstance(state, Tensor) else state)
    if not tensors:
        raise ValueError("there are no tensors to export")
    header: dict[str, Any] = {"__metadata__": {"format": "pt", **metadata}}
    end = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _SAFETENSORS:
            raise ValueError(f"{name}: safetensors has no type for {tensor.dtype}; export to NAME.pt")
        begin, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _SAFETENSORS[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    data = json.dumps(header).encode()
    data += b" " * (-len(data) % 8)
    with disk.NewFile(path) as file:
        file.write(struct.pack("<Q", len(data)) + data)
        for tensor in tensors.values():
            file.write(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
        file.sync()


def _examine(place: _Folder | _Url, names: Sequence[str], *, digests: bool) -> dict[str, Checkpoint | CheckpointError]:
    found: dict[str, Checkpoint | CheckpointError] = {}
    for name in names:
        try:
            found[name] = place.verify(name, contents=digests)
        except CheckpointError as error:
            found[name] = error
    return found


def _report(args: argparse.Namespace, place: _Folder | _Url, found: Mapping[str, Checkpoint | CheckpointError]) -> None:
    if args.json:
        _print_json({"checkpoints": [_as_json(place.path(name), result) for name, result in found.items()]})
        return
    if not found:
        print(f"{place.shown} has no checkpoints")
    for name, result in found.items():
        if isinstance(result, CheckpointError):
            print(f"{name}  DAMAGED: {result}")
            continue
        made = datetime.fromtimestamp(result.time, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        who = f"{result.writer.run or '-'} generation {result.writer.generation}"
        figures = " ".join(f"{key}={value:g}" for key, value in result.metrics.items())
        print(f"{name}  {result.size / 1e6:10.1f} MB  {made}  {who}  {figures}".rstrip())


def _as_json(path: str, result: Checkpoint | CheckpointError) -> dict[str, Any]:
    if isinstance(result, CheckpointError):
        return {"path": path, "whole": False, "reason": str(result)}
    return {
        "path": path,
        "whole": True,
        "step": result.step,
        "bytes": result.size,
        "time": result.time,
        "run": result.writer.run,
        "generation": result.writer.generation,
        "metrics": dict(result.metrics),
    }


def _print_json(document: Any) -> None:
    print(json.dumps(document, indent=1))
