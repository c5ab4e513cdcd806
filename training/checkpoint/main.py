"""`python -m training checkpoints list|verify|prune|export FOLDER`: look after a folder of checkpoints.

argparse, as the launcher has: this runs in the training image, which carries no library for command lines.
"""

import argparse
import json
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from training.checkpoint import contents, disk
from training.checkpoint.folder import Checkpoint, CheckpointError, CheckpointFolder, verify
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
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Look after a folder of checkpoints.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, function: Any, text: str) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.add_argument("folder", type=Path, help="the folder that holds the checkpoints")
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


def _open(args: argparse.Namespace) -> CheckpointFolder:
    if not args.folder.is_dir():
        raise CheckpointError(f"there is no folder {args.folder}")
    return CheckpointFolder(args.folder)


def _paths(args: argparse.Namespace) -> list[Path]:
    paths = _open(args).published()
    if args.step is not None:
        paths = [path for path in paths if path.name == f"step-{args.step:09d}"]
        if not paths:
            raise CheckpointError(f"{args.folder} has no checkpoint of step {args.step}")
    return paths


def _list(args: argparse.Namespace) -> int:
    args.step = None
    _report(args, _examine(_paths(args), digests=False))
    return exit_codes.FINISHED


def _verify(args: argparse.Namespace) -> int:
    found = _examine(_paths(args), digests=True)
    _report(args, found)
    return exit_codes.FAILED if any(isinstance(result, CheckpointError) for result in found.values()) else 0


def _prune(args: argparse.Namespace) -> int:
    rules = Retention(last=args.last, every=args.every, best=args.best, metric=args.metric, mode=args.mode)
    gone = _open(args).prune(rules, digests=True)
    if args.json:
        _print_json({"deleted": [str(path) for path in gone]})
    else:
        for path in gone:
            print(f"deleted {path}")
    return exit_codes.FINISHED


def _export(args: argparse.Namespace) -> int:
    if args.output.suffix not in {".safetensors", ".pt"}:
        raise ValueError(f"{args.output} must end in .safetensors or .pt, which says the format")
    if args.step is None:
        checkpoint = _open(args).newest()
        if checkpoint is None:
            raise CheckpointError(f"{args.folder} has no checkpoint that is whole")
    else:
        checkpoint = verify(_paths(args)[0])
    state = checkpoint.load(only=args.key)[args.key]
    temporary = args.output.with_name(f".{args.output.name}-{os.getpid()}")
    try:
        if args.output.suffix == ".pt":
            torch.save(state, temporary)
        else:
            _write_safetensors(temporary, state, {"step": str(checkpoint.step)})
        disk.rename(temporary, args.output)
    except (OSError, RuntimeError) as error:
        raise CheckpointError(f"{args.output} cannot be written: {error}") from error
    finally:
        disk.remove(temporary)
    if args.json:
        _print_json({"step": checkpoint.step, "output": str(args.output)})
    else:
        print(f"{args.output}: '{args.key}' of step {checkpoint.step}")
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


def _examine(paths: Sequence[Path], *, digests: bool) -> dict[Path, Checkpoint | CheckpointError]:
    found: dict[Path, Checkpoint | CheckpointError] = {}
    for path in paths:
        try:
            found[path] = verify(path, contents=digests)
        except CheckpointError as error:
            found[path] = error
    return found


def _report(args: argparse.Namespace, found: Mapping[Path, Checkpoint | CheckpointError]) -> None:
    if args.json:
        _print_json({"checkpoints": [_as_json(path, result) for path, result in found.items()]})
        return
    if not found:
        print(f"{args.folder} has no checkpoints")
    for path, result in found.items():
        if isinstance(result, CheckpointError):
            print(f"{path.name}  DAMAGED: {result}")
            continue
        made = datetime.fromtimestamp(result.time, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
        who = f"{result.writer.run or '-'} generation {result.writer.generation}"
        figures = " ".join(f"{name}={value:g}" for name, value in result.metrics.items())
        print(f"{path.name}  {result.size / 1e6:10.1f} MB  {made}  {who}  {figures}".rstrip())


def _as_json(path: Path, result: Checkpoint | CheckpointError) -> dict[str, Any]:
    if isinstance(result, CheckpointError):
        return {"path": str(path), "whole": False, "reason": str(result)}
    return {
        "path": str(path),
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
