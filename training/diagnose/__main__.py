"""`python -m training diagnose TOPIC`: why is it slow, stuck or dead?

    python -m training diagnose logs logs/ --merge     # the cause of a failure, out of the logs of all ranks
    python -m training diagnose gpus                   # what nvidia-smi says of this machine
    python -m training diagnose fabric --nproc-per-node 8
    python -m training diagnose nccl train.log         # which transport NCCL has chosen
    python -m training diagnose image                  # does this image fit this machine?

Exit codes: 0, all is well or the cause is known; 1, something is wrong, or no cause is known; 64, wrong options or
files; 78, nothing can run here (image), or a rank is dead (fabric).
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from training.diagnose import causes, gpus, image, links, logs, nccl
from training.launch import exit_codes

PROGRAM: Final = "python -m training diagnose"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one topic; returns the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    parser = _parser()
    try:
        if argv[:1] == ["fabric"]:
            return _fabric(argv[1:])
        given = parser.parse_args(argv)
    except SystemExit as error:
        return exit_codes.FINISHED if error.code in (0, None) else exit_codes.USAGE
    run: Callable[[argparse.Namespace], int] = given.run
    try:
        return run(given)
    except (image.FactsError, logs.LogError, gpus.GpuError) as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return exit_codes.USAGE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    topics = parser.add_subparsers(required=True, metavar="TOPIC")

    def topic(name: str, run: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = topics.add_parser(name, help=text, description=text)
        made.add_argument("--json", action="store_true", help="write one JSON document")
        made.set_defaults(run=run)
        return made

    of_logs = topic("logs", _logs, "the cause of a failure, with the lines that say so and what to do next")
    of_logs.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="logs of ranks and pods, or folders")
    of_logs.add_argument("--merge", action="store_true", help="write all lines by time instead, each with its file")
    of_gpus = topic("gpus", _gpus, "errors, throttling and temperature of the GPUs, by nvidia-smi")
    of_gpus.add_argument("--from", dest="source", type=Path, metavar="FILE", help="output of nvidia-smi: XML or CSV")
    of_gpus.add_argument("--kernel-log", type=Path, metavar="FILE", help="output of dmesg, for Xid errors")
    of_nccl = topic("nccl", _nccl, "the transport that NCCL has chosen, out of output with NCCL_DEBUG=INFO")
    of_nccl.add_argument("paths", nargs="+", type=Path, metavar="FILE", help="logs, or folders")
    # Its command line is mostly the launcher's, and is read there.
    topics.add_parser("fabric", help="bandwidth and latency over the ranks of a job, and who is slow or dead")
    of_image = topic("image", _image, "does this image fit this machine?")
    of_image.add_argument(
        "--built", action="store_true", help="only what is in the image, every difference an error: for its build"
    )
    return parser


def _show(given: argparse.Namespace, document: dict[str, Any], text: str) -> None:
    sys.stdout.write((json.dumps(document, indent=2) if given.json else text) + "\n")


def _logs(given: argparse.Namespace) -> int:
    lines = logs.read(given.paths)
    if given.merge:
        ordered = logs.merged(lines)
        document = {"lines": [{"place": line.place, "time": line.time, "text": line.text} for line in ordered]}
        _show(given, document, "\n".join(f"{line.place}: {line.text}" for line in ordered))
        return exit_codes.FINISHED
    diagnosis = causes.diagnose(lines)
    _show(given, diagnosis.document(), diagnosis.text())
    return exit_codes.FAILED if diagnosis.verdict.cause is causes.UNKNOWN else exit_codes.FINISHED


def _gpus(given: argparse.Namespace) -> int:
    report = gpus.of_text(_text(given.source)) if given.source else gpus.ask()
    if given.kernel_log:
        report = gpus.Report(report.driver, report.gpus, tuple(gpus.xids(_text(given.kernel_log))))
    _show(given, report.document(), report.text())
    return exit_codes.FAILED if report.problems() else exit_codes.FINISHED


def _text(file: Path) -> str:
    try:
        return file.read_bytes().decode(errors="replace")
    except OSError as error:
        raise logs.LogError(f"{file}: {error.strerror or error}") from error


def _nccl(given: argparse.Namespace) -> int:
    found = nccl.transport(line.text for line in logs.read(given.paths))
    _show(given, found.document(), found.text())
    return exit_codes.FAILED if found.kind is None or found.warnings else exit_codes.FINISHED


def _image(given: argparse.Namespace) -> int:
    report = image.examine(built=given.built)
    _show(given, report.document(), report.text())
    return exit_codes.DO_NOT_RESTART if report.errors else exit_codes.FINISHED


def _fabric(argv: Sequence[str]) -> int:
    """Start the measurement under the launcher: its own options go to the script, all others to the launcher."""
    from training.launch.main import run  # noqa: PLC0415  (imports much)

    ours, theirs = links.own_options(argv)
    alone = [] if _has_meeting(theirs) else ["--standalone"]
    return run([*theirs, *alone, "-m", "training.diagnose.fabric", *ours])


def _has_meeting(argv: Sequence[str]) -> bool:
    return any(
        argument.replace("_", "-").startswith(("--rdzv", "--nnodes", "--master", "--standalone")) for argument in argv
    )


if __name__ == "__main__":
    sys.exit(main())
