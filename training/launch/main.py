"""The launcher: `python -m training` (also installed as `trainyard-run`) stands where `torchrun` stood.

    python -m training --nnodes 1:4 --nproc-per-node 4 --max-restarts 3 \
        --rdzv-backend etcd --rdzv-endpoint etcd:2379 --rdzv-id job-7 train.py --lr 0.1
    python -m training --nproc-per-node 2 -m my_package.train

Options and `PET_*` variables are torchrun's own; its parser reads them. What is different:

* Backend `etcd` is served by our `etcd-v3` (`training.launch.rendezvous`); etcd has no v2 API any more.
* Workers fork from a process that has imported torch (`training.launch.template`).
* A node that gets SIGTERM leaves the job at once, and its exit code says what became of it
  (`training.launch.exit_codes`).
* The stores of a round are not shared with the next (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` unless set): with torch's
  default, about half of all restarts hang, because new workers read the addresses of dead ones.
* Without `--max-restarts` an elastic job (--nnodes MIN:MAX) restarts as often as needed, until three failures in a row
  bring no new step; torchrun's default of 0 would end the job at the first lost node.
* With several workers per node and no `OMP_NUM_THREADS`, it is 1, as in torchrun, and already when libraries are
  imported.
* Without `--rdzv-id` the id is made from the command, and a finished run of the same command is not joined.

Other backends (c10d, static) work as in torchrun, with the first two points of what they lack: nobody notices a silent
node, and the node that hosts the store must not die.
"""

import argparse
import hashlib
import importlib.util
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn

from training.diagnose import image
from training.launch import exit_codes
from training.launch.template import Job, Template, exit_quickly, run_job
from training.metrics import scrape

if TYPE_CHECKING:
    from torch.distributed.launcher.api import LaunchConfig

PROGRAM: Final = "python -m training"
SHARE_STORE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# For an elastic job without --max-restarts; lack of progress ends it much sooner.
MANY_RESTARTS: Final = 1000
OURS: Final = frozenset({"etcd", "etcd-v2", "etcd-v3"})


def main() -> NoReturn:
    """Run the launcher and exit with its code (see `training.launch.exit_codes`)."""
    code = run(sys.argv[1:])
    exit_quickly(code)


def run(argv: Sequence[str]) -> int:
    """Run the launcher; returns its exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit_at_once)  # process 1 would ignore SIGTERM otherwise; torch takes over later
    os.environ.setdefault(SHARE_STORE, "1")
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if "OMP_NUM_THREADS" not in os.environ and _num_workers(argv) > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")

    # Slow imports (seconds) only after the handlers are set, and once for launcher and workers together.
    from training.launch import workers  # noqa: PLC0415

    try:
        args = parse(argv)
    except UsageError as error:
        return _usage(error)
    if (code := image.at_start()) is not None:
        return code

    template: Template | None = None
    if os.environ.get(workers.START, "fork") == "fork" and not args.no_python and not args.run_path:
        forked = Template.fork(workers.modules())
        if isinstance(forked, Job):
            run_job(forked)  # we are a worker now; does not return
        template = forked

    from training.launch import torch_private  # noqa: PLC0415

    try:
        if template is not None:
            torch_private.replace_subprocess_factory(workers.factory(template))
        return _launch(args, template)
    except UsageError as error:
        return _usage(error)
    finally:
        if template is not None:
            template.close()


def _num_workers(argv: Sequence[str]) -> int:
    """Workers of this node, read before torch is there to read it properly; a word counts as several."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    default = os.environ.get("PET_NPROC_PER_NODE", "1")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", dest="number", default=default)
    try:
        number = str(parser.parse_known_args(argv)[0].number)
    except argparse.ArgumentError:
        return 1  # the option has no value; torch's parser will say so
    return int(number) if number.isdecimal() else os.cpu_count() or 1


class UsageError(Exception):
    """The command cannot work, now or later; the message says why and what to write instead."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read torchrun's options, and settle what its defaults leave open.

    Raises:
        UsageError: the script or the id is missing, or options contradict each other.
    """
    from torch.distributed.run import get_args_parser, parse_min_max_nnodes  # noqa: PLC0415

    parser = get_args_parser()
    parser.prog = PROGRAM
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=None)
    try:
        args = parser.parse_args(argv)
    except SystemExit as error:
        if error.code in (0, None):
            raise
        raise UsageError("") from error  # argparse has said it
    try:
        if args.nnodes.startswith(":"):
            args.nnodes = f"{majority(int(args.nnodes[1:]))}{args.nnodes}"
        least, most = parse_min_max_nnodes(args.nnodes)
    except (ValueError, RuntimeError) as error:
        raise UsageError(
            f"--nnodes {args.nnodes}: write a number, the least and the most as MIN:MAX, or :MAX (the least is then a "
            "majority)"
        ) from error
    if not 0 < least <= most:
        raise UsageError(f"--nnodes {args.nnodes}: the least must be at least 1 and not more than the most")
    if args.max_restarts is None:
        args.max_restarts = MANY_RESTARTS if args.rdzv_backend in OURS and least < most else 0
    _check_script(args)
    if args.rdzv_backend in OURS and not args.standalone:
        if not args.rdzv_endpoint:
            raise UsageError(f"--rdzv-backend {args.rdzv_backend} needs --rdzv-endpoint HOST:2379, the address of etcd")
        if least < majority(most):
            _say(
                f"--nnodes {args.nnodes}: fewer than {majority(most)} nodes are no majority of {most}, so that the job "
                "could be in two parts at once; a part that is long without etcd stops, and checkpoints refuse writers "
                f"of an older generation (docs/explanation/fencing.md); --nnodes :{most} asks for a majority"
            )
        if args.rdzv_backend != "etcd-v3":
            _say(f"backend '{args.rdzv_backend}' is served by 'etcd-v3': etcd's version 2 API is gone since etcd 3.6")
    return args


def majority(most: int) -> int:
    """The least number of nodes of which there cannot be as many again among `most`."""
    return most // 2 + 1


def job_in_words(args: argparse.Namespace) -> str:
    """What nodes of one job have in common, for telling another job that was given the same run id.

    Not the arguments: they may name a folder of the node. Nor the script's folder, for the same reason.
    """
    module = "-m " if args.module else ""
    return f"{module}{Path(args.training_script).name} on {args.nnodes} nodes"


def _check_script(args: argparse.Namespace) -> None:
    name = args.training_script
    if args.module:
        top = name.partition(".")[0]
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            found = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise UsageError(f"-m {name}: there is no module '{top}' here; check the name and PYTHONPATH")
    elif not args.no_python and not Path(name).is_file():
        raise UsageError(f"there is no script '{name}' (working directory: {Path.cwd()})")


def _launch(args: argparse.Namespace, template: Template | None) -> int:
    """Start the agent and turn how it ends into an exit code."""
    from torch.distributed import DistStoreError  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415

    from training.launch.etcd_client import EtcdError  # noqa: PLC0415

    try:
        if args.rdzv_backend not in OURS or args.standalone:
            return _launch_with_torch(args)
        return _launch_with_etcd(args, template)
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        failures = sorted(error.failures.values(), key=lambda failure: failure.timestamp)
        return exit_codes.Rules().of_failure([failure.exitcode for failure in failures])
    except SignalException as error:
        return exit_codes.of_signal(error.sigval)
    except (EtcdError, RendezvousError, DistStoreError) as error:
        _say(str(error) or type(error).__name__)
        return exit_codes.FAILED


def _launch_with_torch(args: argparse.Namespace) -> int:
    from torch.distributed.run import config_from_args  # noqa: PLC0415
    from torch.distributed.run import run as torchrun  # noqa: PLC0415

    logging.disable()  # what torch has to say it says below
    try:
        config_from_args(argparse.Namespace(**vars(args)))
    except (ValueError, AssertionError) as error:
        raise UsageError(str(error)) from error
    finally:
        logging.disable(logging.NOTSET)
    try:
        torchrun(args)  # type: ignore[no-untyped-call]
    except ValueError as error:
        if "is not registered" not in str(error):
            raise
        raise UsageError(f"--rdzv-backend {args.rdzv_backend}: {error}") from error
    return exit_codes.FINISHED


def _launch_with_etcd(args: argparse.Namespace, template: Template | None) -> int:
    from torch.distributed.elastic.agent.server.api import WorkerSpec  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters  # noqa: PLC0415
    from torch.distributed.run import config_from_args  # noqa: PLC0415

    from training.launch import rendezvous, torch_private  # noqa: PLC0415
    from training.launch.agent import Agent  # noqa: PLC0415
    from training.launch.membership import EtcdRendezvousHandler  # noqa: PLC0415

    args.rdzv_backend = rendezvous.BACKEND
    generated = args.rdzv_id == "none"
    if generated:
        args.rdzv_id = command_id(args)
    args.master_port = args.master_port or 29500
    try:
        config, command, command_args = config_from_args(args)
        parameters = RendezvousParameters(
            backend=config.rdzv_backend,
            endpoint=config.rdzv_endpoint,
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            max_nodes=config.max_nodes,
            local_addr=config.local_addr,
            next_free_run=generated,
            job=job_in_words(args),
            **config.rdzv_configs,
        )
        rendezvous.check(parameters)
    except (ValueError, AssertionError) as error:
        raise UsageError(str(error)) from error
    handler = rendezvous.create_handler(parameters)
    assert isinstance(handler, EtcdRendezvousHandler)  # noqa: S101
    if generated:
        _say(f"no --rdzv-id given; nodes that run the same command meet as '{handler.get_run_id()}'")

    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    _raise_on_signals(config)
    with tempfile.TemporaryDirectory(prefix="trainyard-") as scratch:
        spec = WorkerSpec(
            role=config.role,
            local_world_size=config.nproc_per_node,
            entrypoint=command,
            args=tuple(command_args),
            rdzv_handler=handler,
            max_restarts=config.max_restarts,
            monitor_interval=config.monitor_interval,
            local_addr=config.local_addr,
            event_log_handler=config.event_log_handler,
            numa_options=config.numa_options,
            **torch_private.newer_fields(args),
        )
        agent = Agent(
            handler,
            spec=spec,
            logs_specs=config.logs_specs,
            start_method=config.start_method,
            log_line_prefix_template=config.log_line_prefix_template,
            shutdown_timeout=config.shutdown_timeout,
            progress_file=Path(scratch) / "progress",
            rules=exit_codes.Rules(),
        )
        try:
            if template is not None and not template.wait_until_ready():
                _say("the process that starts workers did not come up; workers start as fresh interpreters")
            scrape.serve_if_asked(agent.recorder, step=agent.progress, restarts_left=lambda: agent.restarts_left)
            result = agent.run()
        except SignalException as error:
            if not agent.left:
                handler.leave()
            return _code_after_signal(agent.worker_exit_codes(), error.sigval)
        except RendezvousClosedError as error:
            _say(str(error))
            return exit_codes.FINISHED if handler.outcome() == "finished" else exit_codes.FAILED
        except BaseException:
            handler.leave()
            raise
        if result is None:  # a spare, never needed, whose job is over
            return exit_codes.FINISHED if handler.outcome() == "finished" else exit_codes.FAILED
        handler.close("failed" if result.is_failed() else "finished")
        if result.is_failed():
            raise ChildFailedError(name=args.training_script, failures=result.failures)
        return exit_codes.FINISHED


def _code_after_signal(codes: list[int | None], number: int) -> int:
    if codes and all(code == exit_codes.FINISHED for code in codes):
        return exit_codes.FINISHED
    if codes and all(code in {exit_codes.PREEMPTED, exit_codes.FINISHED} for code in codes):
        return exit_codes.PREEMPTED
    return exit_codes.of_signal(number)


def command_id(args: argparse.Namespace) -> str:
    """A run id that nodes with the same command share: the script's name and a digest of script, arguments, sizes."""
    command = [args.training_script, *args.training_script_args, args.nnodes, str(args.nproc_per_node)]
    digest = hashlib.sha256("\0".join(command).encode()).hexdigest()[:8]
    return f"{Path(args.training_script).stem}-{digest}"


def _raise_on_signals(config: "LaunchConfig") -> None:
    """From here on a signal is an exception, so that the node leaves the job wherever it is."""
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415

    def raise_signal(number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise SignalException(f"the launcher got {name}", signal.Signals(number))

    for name in config.signals_to_handle.split(","):
        number = getattr(signal, name.strip(), None)
        if number is None:
            raise UsageError(f"--signals-to-handle: there is no signal '{name}'")
        signal.signal(number, raise_signal)


def _exit_at_once(number: int, _: FrameType | None) -> None:
    os._exit(exit_codes.of_signal(number))


def _usage(error: UsageError) -> int:
    if str(error):
        _say(str(error))
    return exit_codes.USAGE


def _say(message: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {message}\n")
    sys.stderr.flush()
