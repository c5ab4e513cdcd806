"""The launcher: `python -m training` (also installed as `trainyard-run`) stands where `torchrun` stood.

    python -m training --nnodes 1:4 --nproc-per-node 4 --max-restarts 3 \
        --rdzv-backend etcd --rdzv-endpoint etcd:2379 --rdzv-id job-7 train.py --lr 0.1
    python -m training --nproc-per-node 2 -m my_package.train

Options and `PET_*` variables are torchrun's own; its parser reads them. Ours, and what becomes of each of torchrun's,
stand in `training.launch.options` and docs/reference/launcher.md. What is different:

* Backend `etcd` is served by our `etcd-v3` (`training.launch.rendezvous`); etcd has no v2 API any more.
* Workers fork from a process that has imported torch (`training.launch.template`).
* A node that gets SIGTERM leaves the job at once, and its exit code says what became of it
  (`training.launch.exit_codes`).
* The stores of a round are not shared with the next (`TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1` unless set): with torch's
  default restarts often hang, because new workers read the addresses of dead ones.
* `--nnodes :MAX` takes a majority of MAX as the least; an explicit MIN below it is pointed out.
* Without `--max-restarts` an elastic job (--nnodes MIN:MAX) restarts as often as needed, until three failures in a row
  bring no new step; torchrun's default of 0 would end the job at the first lost node.
* With several workers per node and no `OMP_NUM_THREADS`, it is 1, as in torchrun, and already when libraries are
  imported.
* Without `--rdzv-id` the id is made from the command, and a finished run of the same command is not joined.

Other backends (c10d, static) work as in torchrun, and with its limits, which are named once at the start (`LIMITS`).
"""

import argparse
import hashlib
import importlib.util
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from training.checkpoint import memory
from training.diagnose import image
from training.launch import exit_codes, init_method, options, rendezvous
from training.launch.budget import LONGEST_PAUSE
from training.launch.environment import RUN, START
from training.launch.notices import watch
from training.launch.template import Job, Template, run_job
from training.metrics import scrape

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

    from training.launch.agent import Agent

PROGRAM: Final = "python -m training"
SHARE_STORE: Final = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
# For an elastic job without --max-restarts; lack of progress ends it much sooner.
MANY_RESTARTS: Final = 1000
OURS: Final = frozenset({"etcd", "etcd-v2", "etcd-v3"})
# torch's own defaults; that of the port is left open by newer releases.
MASTER_PORT: Final = 29500
SHUTDOWN_TIMEOUT: Final = timedelta(seconds=30)
# Half of what a node waits by default for others.
PAUSE_LIMIT: Final = timedelta(minutes=5)
SHUTDOWN_TIMEOUT_VARIABLE: Final = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
# What torch's own rendezvous cannot do, told once at the start.
LIMITS: Final = {
    "c10d": "a node that falls silent is noticed only when a collective times out, one that leaves is missed as late "
    "as a dead one, all end when the node with the store dies, after a pause of the store two worlds can train at "
    "once, and --max-restarts counts on each node",
    "static": "when a node is lost the job fails, and has to be started again on all nodes",
}


def run(argv: Sequence[str] | None = None) -> int:
    """Run the launcher with these arguments (those of the command line by default); returns its exit code."""
    argv = sys.argv[1:] if argv is None else argv
    os.environ.setdefault(SHARE_STORE, "1")
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if "OMP_NUM_THREADS" not in os.environ and _num_workers(argv) > 1:
        os.environ["OMP_NUM_THREADS"] = "1"
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    # What is wrong shows in a moment, and torch takes seconds.
    if wrong := [*options.mistakes_in_variables(os.environ), *_wrong_at_first_look(argv)]:
        return _usage(UsageError(*wrong))
    if (code := _over_already(argv)) is not None:
        return code

    # Slow imports (seconds), once for launcher and workers together.
    from training.launch import hardware, workers  # noqa: PLC0415

    try:
        args = parse(argv)
        options.export(args)
        hardware.check(args.nproc_per_node, args.backend)
    except UsageError as error:
        return _usage(error)
    except hardware.MissingError as error:
        return _usage(UsageError(str(error)))
    except TimeoutError as error:
        _say(str(error))
        return exit_codes.FAILED
    _notices(args)
    if (code := image.at_start()) is not None:
        return code

    template: Template | None = None
    if os.environ.get(START, "fork") == "fork" and not args.no_python and not args.run_path:
        forked = Template.fork(workers.modules())
        if isinstance(forked, Job):
            run_job(forked)  # we are a worker now; does not return
        template = forked

    from training.launch import torch_private  # noqa: PLC0415

    try:
        if template is not None:
            torch_private.replace_subprocess_factory(workers.factory(template, has_control=_is_ours(args)))
        return _launch(args, template)
    except UsageError as error:
        return _usage(error)
    finally:
        if template is not None:
            template.close()
        if run := os.environ.get(RUN):
            memory.free(run)


def _num_workers(argv: Sequence[str]) -> int:
    """Workers of this node, read before torch is there to read it properly; a word counts as several."""
    args = options.first_look(argv)
    if args is None:
        return 1
    number: str = args.nproc_per_node
    return int(number) if number.isdecimal() else os.cpu_count() or 1


class UsageError(Exception):
    """The command cannot work, now or later; each argument is a sentence with what to write instead."""

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


def _wrong_at_first_look(argv: Sequence[str]) -> list[str]:
    args = options.first_look(argv)
    return [] if args is None else list(_mistakes(args))


def _over_already(argv: Sequence[str]) -> int | None:
    """What a launcher ends with that starts when its job has ended; None where it may have to join."""
    args = options.first_look(argv)
    if args is None or not _is_ours(args) or args.rdzv_id == "none":
        return None
    _settle_size(args)
    pairs = (pair.partition("=") for pair in args.rdzv_conf.split(",") if pair)
    config = {key.strip(): value.strip() for key, _, value in pairs}
    outcome = rendezvous.outcome_already(args.rdzv_endpoint, args.rdzv_id, config, job_in_words(args))
    if outcome is None:
        return None
    _say(rendezvous.in_words(args.rdzv_id, outcome))
    return _code_elsewhere(outcome)


def _code_elsewhere(outcome: str) -> int:
    """Exit code of a node that is not part of its job's end."""
    codes = {rendezvous.FINISHED: exit_codes.FINISHED, rendezvous.GIVEN_UP: exit_codes.DO_NOT_RESTART}
    return codes.get(outcome, exit_codes.FAILED)


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Read torchrun's options and ours, and settle what torchrun's defaults leave open.

    Raises:
        UsageError: the script or the id is missing, or options contradict each other.
    """
    from torch import __version__ as torch_version  # noqa: PLC0415
    from torch.distributed.run import get_args_parser  # noqa: PLC0415

    parser = get_args_parser()
    parser.prog = PROGRAM
    missing = options.add_missing(parser)
    options.add_own(parser)
    if "PET_MAX_RESTARTS" not in os.environ:
        parser.set_defaults(max_restarts=None)
    ours, scripts = options.split(sys.argv[1:] if argv is None else argv)
    try:
        args = parser.parse_args(ours)
    except SystemExit as error:
        if error.code in (0, None):
            raise
        raise UsageError("") from error  # argparse has said it
    args.training_script_args += scripts
    wrong = [
        f"{option.name} needs a newer torch than {torch_version}, which is installed"
        for option in missing
        if getattr(args, option.field) != option.default and option.field not in _OURS_IN_OLD_TORCH
    ]
    wrong += _mistakes(args)
    if wrong:
        raise UsageError(*wrong)
    least, most = _settle_size(args)
    if args.max_restarts is None:
        args.max_restarts = MANY_RESTARTS if _is_ours(args) and least < most else 0
    if args.signals_to_handle == options.SIGNALS and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        args.signals_to_handle = options.SIGNALS.replace(",SIGHUP", "")  # nohup
    if args.shutdown_timeout is None:
        args.shutdown_timeout = int(os.environ.get(SHUTDOWN_TIMEOUT_VARIABLE, SHUTDOWN_TIMEOUT.total_seconds()))
    return args


# Options about restarts, which torch's own agent does not know.
_RULES: Final = ("--restart-on", "--no-restart-on", "--restart-pause")
# What the launcher itself does with every torch.
_OURS_IN_OLD_TORCH: Final = frozenset({"shutdown_timeout", "signals_to_handle"})


def _is_ours(args: argparse.Namespace) -> bool:
    return args.rdzv_backend in OURS and not args.standalone


def _nodes(text: str) -> tuple[int, int]:
    """The least and the most of `--nnodes`; where only the most is given, the least is a majority.

    Raises:
        ValueError: it is not `N`, `MIN:MAX` or `:MAX`.
    """
    least, *others = text.split(":")
    if not others:
        return int(least), int(least)
    (most,) = map(int, others)
    return int(least) if least else majority(most), most


def _settle_size(args: argparse.Namespace) -> tuple[int, int]:
    """Has `--nnodes` name the least, as it is told to others, and returns the least and the most."""
    least, most = _nodes(args.nnodes)
    if args.nnodes.startswith(":"):
        args.nnodes = f"{least}:{most}"
    return least, most


def majority(most: int) -> int:
    """The least number of nodes of which there cannot be as many again among `most`."""
    return most // 2 + 1


def job_in_words(args: argparse.Namespace) -> str:
    """What nodes of one job have in common, for telling another job that was given the same run id.

    Not the arguments: they may name a folder of the node. Nor the script's folder, for the same reason.
    """
    module = "-m " if args.module else ""
    return f"{module}{Path(args.training_script).name} on {args.nnodes} nodes"


def _mistakes(args: argparse.Namespace) -> Iterator[str]:
    """All that is wrong, as sentences. Needs no torch."""
    yield from _mistakes_in_size(args)
    yield from _mistakes_in_script(args)
    if _is_ours(args) and not args.rdzv_endpoint:
        yield f"--rdzv-backend {args.rdzv_backend} needs --rdzv-endpoint HOST:2379, the address of etcd"
    if args.max_restarts is not None and args.max_restarts < 0:
        yield f"--max-restarts {args.max_restarts}: write 0 or more"
    if not 0 < args.monitor_interval < float("inf"):
        yield f"--monitor-interval {args.monitor_interval}: write seconds, more than 0"
    yield from _mistakes_in_times(args)
    for name in args.signals_to_handle.split(","):
        if name.strip() not in signal.Signals.__members__:
            yield f"--signals-to-handle: there is no signal '{name}'"
    if not all(rank.strip().isdecimal() for rank in args.local_ranks_filter.split(",") if args.local_ranks_filter):
        yield f"--local-ranks-filter {args.local_ranks_filter}: write local ranks, as 0,1"
    yield from _mistakes_in_rules(args)
    for option in options.OWN:
        value = getattr(args, option.field)
        if value is not None and option.choices and value not in option.choices:
            yield f"{option.variable}={value}: write {', '.join(option.choices)}"
    if args.notices is not None and (told := watch.mistake(args.notices)):
        yield told
    if args.init_method is not None and (told := init_method.mistake(args.init_method, is_one_node=_is_one_node(args))):
        yield told


def _mistakes_in_size(args: argparse.Namespace) -> Iterator[str]:
    try:
        least, most = _nodes(args.nnodes)
    except ValueError:
        yield (
            f"--nnodes {args.nnodes}: write a number, the least and the most as MIN:MAX, or :MAX (the least is then a "
            "majority)"
        )
    else:
        if not 0 < least <= most:
            yield f"--nnodes {args.nnodes}: the least must be at least 1 and not more than the most"
        elif args.standalone and least > 1:
            yield f"--standalone is for one node, and --nnodes {args.nnodes} waits for more: name a --rdzv-backend"
    number = args.nproc_per_node
    if number.removeprefix("-").isdecimal() and int(number) < 1:
        yield f"--nproc-per-node {number}: at least one worker per node"


def _is_one_node(args: argparse.Namespace) -> bool:
    try:
        return _nodes(args.nnodes)[1] == 1
    except ValueError:
        return True


def _mistakes_in_script(args: argparse.Namespace) -> Iterator[str]:
    name = args.training_script
    for other, is_given in (("--no-python", args.no_python), ("--run-path", args.run_path)):
        if args.module and is_given:
            yield f"--module names a Python module and {other} a file: give one of them"
    if args.module:
        top = name.partition(".")[0]
        if str(Path.cwd()) not in sys.path:
            sys.path.insert(0, str(Path.cwd()))
        try:
            found = importlib.util.find_spec(top)
        except (ImportError, ValueError):
            found = None
        if found is None:
            yield f"-m {name}: there is no module '{top}' here; check the name and PYTHONPATH"
    elif args.run_path or not args.no_python:
        if not Path(name).is_file():
            yield f"there is no script '{name}' (working directory: {Path.cwd()})"
    elif shutil.which(name) is None:
        yield f"--no-python: there is no program '{name}' on PATH or in {Path.cwd()}, or it is not executable"


def _mistakes_in_times(args: argparse.Namespace) -> Iterator[str]:
    text = os.environ.get(SHUTDOWN_TIMEOUT_VARIABLE, "0")
    if args.shutdown_timeout is not None and args.shutdown_timeout < 0:
        yield f"--shutdown-timeout {args.shutdown_timeout}: write seconds, 0 or more"
    elif args.shutdown_timeout is None and not text.isdecimal():
        yield f"{SHUTDOWN_TIMEOUT_VARIABLE}={text}: write seconds, 0 or more"


def _mistakes_in_rules(args: argparse.Namespace) -> Iterator[str]:
    given = {name: getattr(args, name[2:].replace("-", "_")) for name in _RULES}
    for option in [name for name, value in given.items() if value]:
        if not _is_ours(args):
            yield f"{option} needs --rdzv-backend etcd: with others torch's own agent decides, by --max-restarts alone"
    if args.restart_pause and not _is_pause(args.restart_pause):
        yield (
            f"--restart-pause {args.restart_pause}: write seconds, 0 to {PAUSE_LIMIT.total_seconds():g}; who comes "
            "meanwhile waits"
        )
    for option, codes in (("--restart-on", args.restart_on), ("--no-restart-on", args.no_restart_on)):
        try:
            exit_codes.Rules.parse(restart=codes or "", final="")
        except ValueError as error:
            yield f"{option}: {error}"


def _is_pause(text: str) -> bool:
    try:
        return 0 <= float(text) <= PAUSE_LIMIT.total_seconds()
    except ValueError:
        return False


def _notices(args: argparse.Namespace) -> None:
    """What is done otherwise than the command says, and the limits of what it asks for; each once."""
    for sentence in options.unknown_variables(os.environ):
        _say(sentence)
    if args.standalone and args.rdzv_backend != "static":
        _say(f"--standalone: one node without a store; --rdzv-backend {args.rdzv_backend} is not used")
    elif args.rdzv_backend in OURS:
        least, most = _nodes(args.nnodes)
        if least < majority(most):
            _say(
                f"--nnodes {args.nnodes}: fewer than {majority(most)} nodes are no majority of {most}, so that the job "
                "could be in two parts at once; a part that is long without etcd stops, and checkpoints refuse writers "
                f"of an older generation (docs/explanation/fencing.md); --nnodes :{most} asks for a majority"
            )
        if args.rdzv_backend != "etcd-v3":
            _say(f"backend '{args.rdzv_backend}' is served by 'etcd-v3': etcd's version 2 API is gone since etcd 3.6")
        ignored = {"--node-rank": args.node_rank, "--master-addr": args.master_addr != "127.0.0.1"}
        ignored["--master-port"] = args.master_port not in {None, MASTER_PORT}
        for option in [name for name, is_given in ignored.items() if is_given]:
            _say(f"{option} is ignored: it is for the backend 'static', here the nodes agree on ranks and address")
    elif args.rdzv_backend in LIMITS and not _is_one_node(args):
        limits = LIMITS[args.rdzv_backend]
        _say(f"rendezvous '{args.rdzv_backend}': {limits}. None of this holds for --rdzv-backend etcd")


def _launch(args: argparse.Namespace, template: Template | None) -> int:
    """Start the agent and turn how it ends into an exit code."""
    from torch.distributed import DistStoreError  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousError  # noqa: PLC0415

    from training.launch.etcd_client import EtcdError  # noqa: PLC0415

    try:
        _check_event_log_handler(args.event_log_handler)
        with init_method.exported():
            return _launch_with_etcd(args, template) if _is_ours(args) else _launch_with_torch(args)
    except ChildFailedError as error:
        sys.stderr.write(f"{error}\n")
        return _rules(args).of_failure(_codes_in_order(error.failures))
    except SignalException as error:
        return exit_codes.of_signal(error.sigval)
    except (EtcdError, RendezvousError, DistStoreError) as error:
        _say(str(error) or type(error).__name__)
        return exit_codes.FAILED


def _codes_in_order(failures: "Mapping[int, ProcessFailure]") -> list[int]:
    return [failure.exitcode for failure in sorted(failures.values(), key=lambda failure: failure.timestamp)]


def _rules(args: argparse.Namespace) -> exit_codes.Rules:
    return exit_codes.Rules.parse(restart=args.restart_on or "", final=args.no_restart_on or "")


def _check_event_log_handler(name: str) -> None:
    from torch.distributed.elastic.events.handlers import get_logging_handler  # noqa: PLC0415

    try:
        get_logging_handler(name)
    except KeyError as error:
        raise UsageError(
            f"--event-log-handler {name}: no such handler is registered; torch has null, console"
        ) from error


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
    notices = watch.Watch(args.notices or watch.AUTO, watch.wake_signal(args.signals_to_handle))
    try:
        torchrun(args)  # type: ignore[no-untyped-call]
    except ValueError as error:
        if "is not registered" not in str(error):
            raise
        raise UsageError(f"--rdzv-backend {args.rdzv_backend}: {error}") from error
    finally:
        notices.close()
    return exit_codes.FINISHED


def _launch_with_etcd(args: argparse.Namespace, template: Template | None) -> int:
    from torch.distributed.elastic.agent.server.api import WorkerSpec  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters  # noqa: PLC0415
    from torch.distributed.run import config_from_args  # noqa: PLC0415

    from training.launch import torch_private  # noqa: PLC0415
    from training.launch.agent import Agent  # noqa: PLC0415
    from training.launch.membership import EtcdRendezvousHandler  # noqa: PLC0415

    args.rdzv_backend = rendezvous.BACKEND
    generated = args.rdzv_id == "none"
    if generated:
        args.rdzv_id = command_id(args)
    args.master_port = args.master_port or MASTER_PORT
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

    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = args.signals_to_handle
    _raise_on_signals(args.signals_to_handle)
    notices = watch.Watch(args.notices or watch.AUTO, watch.wake_signal(args.signals_to_handle), is_member=False)
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
            shutdown_timeout=args.shutdown_timeout,
            progress_file=Path(scratch) / "progress",
            rules=_rules(args),
            longest_pause=float(args.restart_pause or LONGEST_PAUSE),
            watch=notices,
        )
        try:
            if template is not None and not template.wait_until_ready():
                _say("the process that starts workers did not come up; workers start as fresh interpreters")
            scrape.serve_if_asked(agent.recorder, step=agent.progress, restarts_left=lambda: agent.restarts_left)
            notices.stay_away()
            result = _run(agent, args.signals_to_handle)
        except SignalException as error:
            if not agent.left:
                handler.leave()
            return _code_after_signal(agent.worker_exit_codes(), error.sigval)
        except RendezvousClosedError as error:
            _say(str(error))
            return _code_elsewhere(handler.outcome())
        except BaseException:
            handler.leave()
            raise
        if result is None:  # a spare, never needed, whose job is over
            return _code_elsewhere(handler.outcome())
        if not result.is_failed():
            handler.close(rendezvous.FINISHED)
            return exit_codes.FINISHED
        code = _rules(args).of_failure(_codes_in_order(result.failures), is_stuck=agent.is_stuck)
        handler.close(rendezvous.GIVEN_UP if code in exit_codes.FINAL else rendezvous.FAILED)
        sys.stderr.write(f"{ChildFailedError(name=args.training_script, failures=result.failures)}\n")
        return code


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


def _raise_on_signals(names: str) -> None:
    """From here on a signal is an exception, so that the node leaves the job wherever it is."""
    from torch.distributed.elastic.multiprocessing import SignalException  # noqa: PLC0415

    def raise_signal(number: int, _: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise SignalException(f"the launcher got {name}", signal.Signals(number))

    for name in names.split(","):
        signal.signal(signal.Signals[name.strip()], raise_signal)


def _run(agent: "Agent", signals: str) -> "RunResult | None":
    """Run the agent. What is left to do then has time limits (half a minute without etcd), and no signal ends it."""
    try:
        result: RunResult | None = agent.run()
    finally:
        for name in signals.split(","):
            signal.signal(signal.Signals[name.strip()], signal.SIG_IGN)
    return result


def _usage(error: UsageError) -> int:
    for sentence in filter(None, error.args):
        _say(sentence)
    return exit_codes.USAGE


def _say(message: str) -> None:
    sys.stderr.write(f"{PROGRAM}: {message}\n")
    sys.stderr.flush()
