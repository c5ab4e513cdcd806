"""Preview stacks side by side, with policies and cost: what they would become, each as a report.

    python -m ci.preview                     # all stacks, without an account: `make preview`
    python -m ci.preview prod --on account   # one stack, with the credentials of the shell

Writes STACK.md (short enough for a comment), STACK.json, STACK.sarif and STACK.log for each, and prints what they say
together. AWS stacks share one set of stand-ins, started for this and ended with it; the local stack is looked at in the
same API server unless its cluster runs. Ends with 1 where a stack is refused or cannot be previewed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from ci.failures import StepError, end
from ci.stacks import ROOT, project, stacks

if TYPE_CHECKING:
    from infra.rehearsal.environment import Rehearsal

OUT = ROOT / "build/preview"
TRAINYARD = (sys.executable, "-c", "import sys; sys.argv[0] = 'trainyard'; from infra.cli import main; main()")
"""The command of this checkout, whether or not it is installed."""
_ANY_REGION = "us-east-2"
_STATE = "TRAINYARD_STATE_DIR"
_LOOKED_AT_EMPTY = "the local cluster does not run: everything would be new"
_LONGEST_LOG = 4_000  # characters of what a preview said that has no report


@dataclass
class Result:
    """How the preview of one stack went."""

    stack: str
    how: str
    """"rehearsal", "account", or "this computer"."""
    code: int = 1
    seconds: float = 0.0
    document: Mapping[str, Any] | None = None
    """The report as JSON, if there is one."""
    log: str = ""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Wanted:
    """What to preview, where and how."""

    stacks: Sequence[Mapping[str, str]]
    out: Path
    on: str
    jobs: int
    fail_on: str | None = None


def preview(wanted: Wanted, timings: dict[str, float] | None = None) -> list[Result]:
    """Preview stacks, as many at a time as there are jobs; each as it ends is written.

    Args:
        wanted: what.
        timings: takes up the seconds of the parts.

    Raises:
        StepError: the stand-ins do not start.
    """
    wanted.out.mkdir(parents=True, exist_ok=True)
    timed = timings if timings is not None else {}
    with tempfile.TemporaryDirectory(prefix="ty-") as folder, _stand_ins(wanted, Path(folder), timed) as lender:
        begin = time.monotonic()
        with ThreadPoolExecutor(max_workers=wanted.jobs) as pool:
            results = list(pool.map(lambda one: _one(one, wanted, Path(folder), lender), wanted.stacks))
        timed["previews"] = time.monotonic() - begin
    return results


@contextlib.contextmanager
def _stand_ins(wanted: Wanted, folder: Path, timings: dict[str, float]) -> Iterator[Rehearsal | None]:
    """The stand-ins that all stacks share, where one needs any."""
    if not any(_how(one, wanted.on) == "rehearsal" or _needs_api_server(one) for one in wanted.stacks):
        yield None
        return
    from infra.errors import TrainyardError  # noqa: PLC0415 - with what follows half a second
    from infra.local import engines  # noqa: PLC0415
    from infra.local.state import State  # noqa: PLC0415
    from infra.rehearsal.environment import ENGINES, Rehearsal  # noqa: PLC0415

    begin = time.monotonic()
    try:
        found = {name: engine.path for name, engine in engines.ensure(ENGINES).items()}
        timings["engines"] = time.monotonic() - begin
        begin = time.monotonic()
        lender = Rehearsal(State(folder / "shared"), found)
        try:
            lender.up_to_look(_ANY_REGION)
            timings["stand-ins"] = time.monotonic() - begin
            yield lender
        finally:
            begin = time.monotonic()
            lender.down(at_once=True)
            timings["end of the stand-ins"] = time.monotonic() - begin
    except TrainyardError as error:
        raise StepError(f"the stand-ins of AWS and the cluster do not start: {error}") from error


def _how(about: Mapping[str, str], on: str) -> str:
    if about["target"] == "aws":
        return on
    return "this computer"


def _needs_api_server(about: Mapping[str, str]) -> bool:
    """Whether the stack is the local one, and its cluster does not run."""
    if about["target"] != "local":
        return False
    from infra.clusters import local_state_directory  # noqa: PLC0415

    return not (local_state_directory(about["stack"]) / "kubeconfig").exists()


def _one(about: Mapping[str, str], wanted: Wanted, folder: Path, lender: Rehearsal | None) -> Result:
    stack, how = about["stack"], _how(about, wanted.on)
    result = Result(stack, how)
    begin = time.monotonic()
    files = {ending: wanted.out / f"{stack}.{ending}" for ending in ("md", "full.md", "json", "sarif", "log")}
    for file in files.values():
        file.unlink(missing_ok=True)
    arguments = ["preview", "-s", stack, "--json", "--report", str(files["md"]), "--sarif", str(files["sarif"])]
    arguments += ["--rehearse"] if how == "rehearsal" else []
    arguments += ["--fail-on", wanted.fail_on] if wanted.fail_on is not None else []
    variables = dict(os.environ)
    if not variables.get("PULUMI_BACKEND_URL"):  # a workflow's variable that is empty is one that nobody has set
        variables.pop("PULUMI_BACKEND_URL", None)
    if lender and (how == "rehearsal" or _needs_api_server(about)):
        variables[_STATE] = str(_borrow(lender, about, folder))
        if how != "rehearsal":
            result.notes.append(_LOOKED_AT_EMPTY)
    done = subprocess.run(
        [*TRAINYARD, *arguments], cwd=ROOT, env=variables, stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    result.seconds, result.code = time.monotonic() - begin, done.returncode
    result.log = done.stderr.decode("utf-8", "replace")
    files["log"].write_text(result.log, encoding="utf-8")
    with contextlib.suppress(ValueError):
        result.document = json.loads(done.stdout)
        files["json"].write_bytes(done.stdout)
    if not files["md"].is_file():
        files["md"].write_text(_without_report(stack, result.log), encoding="utf-8")
    return result


def _borrow(lender: Rehearsal, about: Mapping[str, str], folder: Path) -> Path:
    """A state folder for the stack's preview, with the lender's stand-ins in it."""
    from infra.local.state import State  # noqa: PLC0415

    state = folder / about["stack"]
    if about["target"] == "aws":
        lender.lend(State(state / f"rehearsal-{about['stack']}"), about["region"] or _ANY_REGION)
    else:
        shutil.copy(lender.connection().kubeconfig, State(state).directory / "kubeconfig")
    return state


def _without_report(stack: str, log: str) -> str:
    """The report of a stack that has none: what the command said."""
    from infra.report.escape import fenced, plain  # noqa: PLC0415
    from infra.report.markdown import marker  # noqa: PLC0415

    said = log.strip()[-_LONGEST_LOG:] or "The preview ended without a word."
    lines = [
        marker(project(), stack),
        f"## ❌ Preview of stack `{stack}`",
        "",
        "> [!CAUTION]",
        "> **There is no preview, so nothing is known about this change.**",
        "",
        fenced([plain(line, 400) for line in said.splitlines()]),
    ]
    return "\n".join(lines) + "\n"


def _show(results: Sequence[Result], out: Path, seconds: float) -> None:
    from infra.cli.console import row, show, stdout, table  # noqa: PLC0415

    shown = table("stack", "by", "changes", "USD/h min", "USD/h max", "USD/month", "policies", "verdict", "seconds")
    for one in results:
        row(shown, one.stack, one.how, *_cells(one), f"{one.seconds:.1f}")
    show(shown)
    console = stdout()
    for one in results:
        sentences = [found["sentence"] for found in (one.document or {}).get("failures", ())]
        if one.code and not sentences:
            sentences = one.log.strip().splitlines()[-6:]
        for sentence in [*one.notes, *sentences]:
            console.print(f"{one.stack}: {sentence}", markup=False)
    where = out.relative_to(ROOT) if out.is_relative_to(ROOT) else out
    console.print(f"{seconds:.1f} s. Reports: {where}/*.md", markup=False)


def _cells(result: Result) -> list[str]:
    if result.document is None:
        return ["none known", "", "", "", "", "no preview"]
    found = result.document
    changes = ", ".join(f"{count} to {op}" for op, count in found["changes"].items() if op not in ("same", "read"))
    broken = [one for one in found["policies"] if one["outcome"] == "violation"]
    blocking = sum(one["blocks"] for one in broken)
    policies = f"{found['rules_run']} rules, {len(broken)} broken" + (f", {blocking} mandatory" if blocking else "")
    verdict = "refused" if result.code else "may go in"
    return [changes or "none", *_money(found["cost"]), policies, verdict]


def _money(cost: Mapping[str, Any] | None) -> list[str]:
    names = ("usd_per_hour_at_min", "usd_per_hour_at_max", "usd_per_month")
    return [_sum(cost["after"][name]) if cost else "-" for name in names]


def _sum(total: Mapping[str, Any]) -> str:
    """A sum of the report, in its words; what has no price in it is said."""
    from infra.report.cost import NOTHING, Total, Usd  # noqa: PLC0415
    from infra.report.escape import plain  # noqa: PLC0415

    usd = total["usd"]
    known = Usd(Decimal(usd["low"]), Decimal(usd["high"])) if usd else NOTHING
    return plain(Total(known, tuple(total["without"]), all_unknown=usd is None).shown())


def _summarize(results: Sequence[Result], out: Path) -> None:
    """Give the reports to the page of a workflow's run."""
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as opened:
            opened.writelines((out / f"{one.stack}.md").read_text(encoding="utf-8") + "\n" for one in results)


def main() -> int:
    """Preview, write, show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", nargs="*", metavar="STACK", help="which; none: all Pulumi.*.yaml")
    parser.add_argument(
        "--on", choices=("rehearsal", "account"), default="rehearsal", help="AWS stacks: by rehearsal, or for real"
    )
    parser.add_argument("--out", type=Path, default=OUT, metavar="FOLDER", help="for the reports (build/preview)")
    parser.add_argument("--jobs", type=int, default=4, help="stacks at a time (default 4)")
    parser.add_argument("--fail-on", metavar="WHAT", help="as of `trainyard preview`")
    options = parser.parse_args()
    begin = time.monotonic()
    there = {one["stack"]: one for one in stacks(ROOT)}
    if unknown := [name for name in options.stacks if name not in there]:
        raise StepError(f"there is no Pulumi.{unknown[0]}.yaml; stacks here: {', '.join(there)}")
    chosen = [there[name] for name in options.stacks] if options.stacks else list(there.values())
    if not options.stacks:  # a cluster of the user's own cannot be looked at without it
        chosen = [one for one in chosen if one["target"] != "kubeconfig"]
    signal.signal(signal.SIGTERM, _terminated)
    results = preview(Wanted(chosen, options.out, options.on, max(1, options.jobs), options.fail_on))
    _show(results, options.out, time.monotonic() - begin)
    _summarize(results, options.out)
    return max((1 if one.code else 0 for one in results), default=0)


def _terminated(number: int, _: FrameType | None) -> None:
    """End in order: the stand-ins go as well."""
    if threading.current_thread() is threading.main_thread():
        raise SystemExit(128 + number)


if __name__ == "__main__":
    end(main)
