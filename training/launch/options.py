"""The launcher's command line: torchrun's options, one by one, and ours.

torch's own parser reads the command line (`training.launch.main.parse`). But torch takes seconds to import, and a
mistake should not have to wait for it. So this module, which imports no torch, knows torchrun's options as a table: it
reads the same command line for a first look, and the reference page is made from it. A test holds the table against
torch's parser; an option that it does not know is left to torch.
"""

import argparse
import difflib
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any, Final, NoReturn

from training.launch import environment

PREFIX: Final = "PET_"


@dataclass(frozen=True, kw_only=True)
class TorchrunOption:
    """An option of torchrun.

    Attributes:
        name: as in the documentation of torchrun; with underscores it is the same.
        short: its letter, if it has one.
        default: what it is when nobody gives it.
        type: of its value.
        choices: all its values, where they are few.
        is_flag: whether it has no value.
        has_variable: whether `PET_NAME` stands for it.
        here: what the launcher does with it.
    """

    name: str
    here: str
    short: str = ""
    default: object = None
    type: Callable[[str], object] = str
    choices: tuple[str, ...] = ()
    is_flag: bool = False
    has_variable: bool = True

    @property
    def field(self) -> str:
        """Its place in the parsed arguments."""
        return self.name[2:].replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable that stands for it; empty if there is none."""
        return f"{PREFIX}{self.field.upper()}" if self.has_variable else ""

    @property
    def names(self) -> tuple[str, ...]:
        """All its spellings."""
        return tuple(dict.fromkeys(filter(None, (self.short, self.name, f"--{self.field}"))))


AS_IN_TORCHRUN: Final = "As in torchrun."
SIGNALS: Final = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"

TORCHRUN: Final = (
    TorchrunOption(
        name="--nnodes",
        default="1:1",
        here="As in torchrun, and `:MAX`, of which the least is a majority. With etcd, joiners are let in up to the "
        "most, further ones wait as spares, and below the least the others wait (`join_timeout` of `--rdzv-conf`, "
        "600 s).",
    ),
    TorchrunOption(
        name="--nproc-per-node",
        default="1",
        here="As in torchrun: a number, `gpu`, `xpu`, `cpu`, `auto`. What torch does not see is refused.",
    ),
    TorchrunOption(
        name="--rdzv-backend",
        default="static",
        here="`etcd`, `etcd-v2` and `etcd-v3` are all served by our `etcd-v3`. `c10d`, `static` and registered ones "
        "are torch's own, with the limits below.",
    ),
    TorchrunOption(
        name="--rdzv-endpoint",
        default="",
        here="As in torchrun; with etcd `HOST:2379`, more members by `endpoints` of `--rdzv-conf`.",
    ),
    TorchrunOption(
        name="--rdzv-id",
        default="none",
        here="As in torchrun. With etcd and without an id it is made from the command; a finished run is not joined.",
    ),
    TorchrunOption(
        name="--rdzv-conf",
        default="",
        here="As in torchrun; with etcd the keys of `training.launch.rendezvous`, and others are refused.",
    ),
    TorchrunOption(
        name="--standalone",
        default=False,
        is_flag=True,
        here="As in torchrun: one node, no store needed. Refused with more than one node as the least.",
    ),
    TorchrunOption(
        name="--max-restarts",
        default=0,
        type=int,
        here="With etcd: failures of the whole job that are made good; without it an elastic job (`MIN:MAX`) restarts "
        "until three failures in a row bring no new step. A lost, leaving or joining node costs nothing. With "
        "torch's own rendezvous as in torchrun.",
    ),
    TorchrunOption(name="--monitor-interval", default=0.1, type=float, here=AS_IN_TORCHRUN),
    TorchrunOption(
        name="--start-method",
        default="spawn",
        choices=("spawn", "fork", "forkserver"),
        here="As in torchrun, which uses it for `--run-path` only; `--worker-start` is ours for scripts and modules.",
    ),
    TorchrunOption(
        name="--event-log-handler",
        default="null",
        here="As in torchrun; a name that is not registered is refused. Progress lines need no handler.",
    ),
    TorchrunOption(name="--role", default="default", here=AS_IN_TORCHRUN),
    TorchrunOption(name="--module", short="-m", default=False, is_flag=True, here=AS_IN_TORCHRUN),
    TorchrunOption(
        name="--no-python",
        default=False,
        is_flag=True,
        here="As in torchrun; such workers are started, not forked. Refused together with `--module`.",
    ),
    TorchrunOption(
        name="--run-path",
        default=False,
        is_flag=True,
        here="As in torchrun; such workers are started, not forked. Refused together with `--module`.",
    ),
    TorchrunOption(name="--log-dir", here=AS_IN_TORCHRUN),
    TorchrunOption(name="--redirects", short="-r", default="0", here=AS_IN_TORCHRUN),
    TorchrunOption(name="--tee", short="-t", default="0", here=AS_IN_TORCHRUN),
    TorchrunOption(name="--log-line-prefix-template", default="", here=AS_IN_TORCHRUN),
    TorchrunOption(name="--local-ranks-filter", default="", here=AS_IN_TORCHRUN),
    TorchrunOption(name="--duplicate-stdout-filters", default=[], here=AS_IN_TORCHRUN),
    TorchrunOption(name="--duplicate-stderr-filters", default=[], here=AS_IN_TORCHRUN),
    TorchrunOption(
        name="--node-rank",
        default=0,
        type=int,
        here="As in torchrun, for `static`; other backends give out the ranks, and say that this one is ignored.",
    ),
    TorchrunOption(
        name="--master-addr",
        default="127.0.0.1",
        here="As in torchrun, for `static`; otherwise rank 0 is where the rendezvous puts it, and that is said.",
    ),
    TorchrunOption(name="--master-port", type=int, here="As in torchrun, for `static`; as `--master-addr`."),
    TorchrunOption(name="--local-addr", here=AS_IN_TORCHRUN),
    TorchrunOption(name="--logs-specs", has_variable=False, here=AS_IN_TORCHRUN),
    TorchrunOption(
        name="--numa-binding",
        has_variable=False,
        choices=("node", "socket", "exclusive", "core-complex"),
        here="As in torchrun; such workers are started, not forked.",
    ),
    TorchrunOption(
        name="--signals-to-handle",
        default=SIGNALS,
        here="As in torchrun; a name that is no signal is refused. SIGHUP stays ignored under `nohup`.",
    ),
    TorchrunOption(
        name="--shutdown-timeout",
        type=int,
        here="Seconds that workers get to end: at a signal as in torchrun, and also when a node joins or leaves, where "
        "torchrun always takes 30. Three after a loss: no collective can succeed any more. Works on every torch.",
    ),
    TorchrunOption(name="--virtual-local-rank", default=False, is_flag=True, here=AS_IN_TORCHRUN),
    TorchrunOption(
        name="--print-completion",
        has_variable=False,
        choices=("bash", "zsh", "tcsh"),
        here="As in torchrun: the script completes `torchrun`.",
    ),
)


@dataclass(frozen=True, kw_only=True)
class OwnOption:
    """An option of ours: its value becomes its environment variable, and that is its default."""

    name: str
    variable: str
    metavar: str
    help: str
    choices: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """Its place in the parsed arguments."""
        return self.name[2:].replace("-", "_")


OWN: Final = (
    OwnOption(
        name="--restart-on",
        variable=environment.RESTART_ON,
        metavar="CODES",
        help="Exit codes of workers after which they start again, within the budget, even if they are final by default "
        "(64, 78) or by --no-restart-on: codes, ranges and signals, as 3,10-12,SIGSEGV. With etcd.",
    ),
    OwnOption(
        name="--no-restart-on",
        variable=environment.NO_RESTART_ON,
        metavar="CODES",
        help="Exit codes of workers after which nothing is started again; the launcher ends with 78. With etcd.",
    ),
    OwnOption(
        name="--restart-pause",
        variable=environment.RESTART_PAUSE,
        metavar="SECONDS",
        help="Seconds between two starts of workers, the first of which brought no new step: so many before the last "
        "try, a fifth before the one before it. 0: none. Default: 20. With etcd.",
    ),
    OwnOption(
        name="--backend",
        variable=environment.BACKEND,
        metavar="BACKEND",
        choices=("gloo", "nccl", "mpi"),
        help="Backend that training.launch.process_group.init() takes; refused where this torch or this machine lacks "
        "it. Default: nccl with a GPU, else gloo.",
    ),
    OwnOption(
        name="--init-method",
        variable=environment.INIT_METHOD,
        metavar="METHOD",
        help="How training.launch.process_group.init() meets the others: env, tcp, file (one node) or "
        "file:///shared/folder. Default: env.",
    ),
    OwnOption(
        name="--worker-start",
        variable=environment.START,
        metavar="WAY",
        choices=("fork", "spawn"),
        help="fork: workers fork from a process that has imported torch (default); spawn: each is a fresh interpreter.",
    ),
    OwnOption(
        name="--preload",
        variable=environment.PRELOAD,
        metavar="MODULES",
        help="Modules that are imported before workers are forked, as numpy,sklearn.datasets. Default: numpy.",
    ),
    OwnOption(
        name="--notices",
        variable=environment.NOTICES,
        metavar="SOURCES",
        help="Who is asked whether this node will be taken: some of aws,gcp,azure,kubernetes; none; or auto, what this "
        "machine's firmware names (default).",
    ),
    OwnOption(
        name="--records",
        variable=environment.RECORDS,
        metavar="FOLDER",
        help="Folder in which each recovery is recorded (recoveries.jsonl).",
    ),
    OwnOption(
        name="--metrics-port",
        variable=environment.METRICS_PORT,
        metavar="PORT",
        help="Port on which Prometheus finds the launcher's metrics. Default: none.",
    ),
)


class _PrintVersion(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        told = f"Trainyard {_version('trainyard')}, torch {_version('torch')}, Python {platform.python_version()}"
        sys.stdout.write(f"{told}\n")
        parser.exit()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def add_own(parser: argparse.ArgumentParser) -> None:
    """Give a parser our options, as a group of their own."""
    group = parser.add_argument_group("Trainyard", "What torchrun does not have; a variable stands for each.")
    for option in OWN:
        group.add_argument(
            option.name,
            metavar=option.metavar,
            choices=option.choices or None,
            default=os.environ.get(option.variable) or None,
            help=f"{option.help} [{option.variable}]",
        )
    group.add_argument(
        "--version", nargs=0, action=_PrintVersion, help="Print the versions of Trainyard, torch and Python."
    )


def export(args: argparse.Namespace) -> None:
    """Put our options where the parts of the launcher, and the workers, read them: into the environment."""
    for option in OWN:
        value = getattr(args, option.field)
        if value is not None:
            os.environ[option.variable] = value


class _QuietParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def split(argv: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    """The launcher's part of a command line, which ends with the script, and the script's arguments.

    argparse looks for options in all of it, also behind the script, where `--logs=x` would be an ambiguous one of ours.
    Where no script is found, or only torch's parser knows what comes before it, all is the launcher's.
    """
    parser = _table_parser()
    for end, argument in enumerate(argv, 1):
        if not argument.startswith("-") and _parsed(parser, argv[:end]) is not None:
            return argv[:end], argv[end:]
    return argv, ()


def first_look(argv: Sequence[str]) -> argparse.Namespace | None:
    """The command line as the table reads it; None where only torch's parser can say what it means or what is wrong."""
    ours, scripts = split(argv)
    args = _parsed(_table_parser(), ours)
    if args is None or args.print_completion:
        return None
    args.training_script_args += scripts
    return args


def _parsed(parser: _QuietParser, argv: Sequence[str]) -> argparse.Namespace | None:
    try:
        return parser.parse_args(argv)
    except ValueError:
        return None


def _table_parser() -> _QuietParser:
    parser = _QuietParser(add_help=False)
    for option in TORCHRUN:
        default = os.environ.get(option.variable, option.default) if option.variable else option.default
        if option.is_flag:
            is_set = default if isinstance(default, bool) else default == "1"
            parser.add_argument(*option.names, action="store_true", default=is_set)
        else:
            parser.add_argument(*option.names, type=option.type, choices=option.choices or None, default=default)
    add_own(parser)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


def mistakes_in_variables(variables: Mapping[str, str]) -> Iterator[str]:
    """Values of `PET_*` flags that torch's parser would answer with a traceback."""
    for option in TORCHRUN:
        value = variables.get(option.variable, "0") if option.is_flag else "0"
        if value.strip() not in {"0", "1"}:
            yield f"{option.variable}={value}: write 1 (as if {option.name} were given) or 0"


def unknown_variables(variables: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each `PET_*` variable that stands for no option; torchrun ignores them in silence."""
    known = [option.variable for option in TORCHRUN if option.variable]
    for name in sorted(variables):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, 1)
            yield f"{name} stands for no option and is ignored" + (f"; did you mean {near[0]}?" if near else "")


def add_missing(parser: argparse.ArgumentParser) -> list[TorchrunOption]:
    """Give an older torch's parser the options that it lacks; returns them."""
    known: dict[str, Any] = vars(parser.parse_args(["script"]))
    missing = [option for option in TORCHRUN if option.field not in known and option.name != "--print-completion"]
    for option in missing:
        default = os.environ.get(option.variable, option.default) if option.variable else option.default
        if option.is_flag:
            parser.add_argument(*option.names, action="store_true", default=default in {True, "1"})
        else:
            parser.add_argument(*option.names, type=option.type, choices=option.choices or None, default=default)
    return missing
