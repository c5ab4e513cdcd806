"""Options that several commands share, so that they are spelled and explained once."""

from __future__ import annotations

from typing import Annotated

import typer

Stack = Annotated[str, typer.Option("-s", "--stack", help="The stack: its settings are in Pulumi.<stack>.yaml.")]
Json = Annotated[bool, typer.Option("--json", help="Write one JSON document to stdout, and nothing else there.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Fail, instead of waiting, while another command changes this cluster.")
]
Rehearse = Annotated[
    bool,
    typer.Option(
        "--rehearse",
        help="For stacks of target aws: without an account, on stand-ins of this computer. See docs/how-to/aws.md.",
    ),
]
