"""The plugin `pulumi-resource-aws` of a rehearsal: the engine starts it and reads a port from its first line."""

import os
import sys

from infra.errors import TrainyardError
from infra.rehearsal.connection import Connection, folder_of_environment
from infra.rehearsal.double.aws import Aws, Nodes
from infra.rehearsal.double.server import serve


def kubernetes_nodes() -> Nodes:
    """Who makes the nodes of node groups; its Kubernetes client is slow to import, and most starts need none."""
    from infra.rehearsal import nodes  # noqa: PLC0415

    return nodes


def main() -> int:
    """Serves the engine until it goes away."""
    try:
        folder = folder_of_environment()
        connection = Connection.read(folder)
    except TrainyardError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    serve(lambda region: Aws(connection, folder, region=region, nodes=kubernetes_nodes))
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The engine waits for us; an ordinary end takes AWS's models down one by one, a third of a second for nothing.
    os._exit(code)
