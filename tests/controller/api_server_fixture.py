"""Fixtures `cluster`, a real etcd and kube-apiserver for a test session, and `controller`, one for a test module.

Test modules name this one in `pytest_plugins`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from real_api_server import (
    ADMIN_TOKEN,
    CONTROLLER_TOKEN,
    CONTROLLER_USER,
    NODE,
    Cluster,
    ControllerProcess,
    end,
    engine,
    eventually,
    free_port,
    install,
    start_controller,
)

from training.controller.rbac import LEASE_NAME


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """etcd and kube-apiserver with the ElasticJob API, and the controller's rights bound to its user."""
    folder = tmp_path_factory.mktemp("control-plane")
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    key_file = folder / "service-accounts.key"
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    tokens = folder / "tokens.csv"
    tokens.write_text(
        f'{ADMIN_TOKEN},admin,admin,"system:masters"\n'
        f'{CONTROLLER_TOKEN},{CONTROLLER_USER},controller,"system:serviceaccounts"\n'
    )
    client_port, peer_port, secure_port = free_port(), free_port(), free_port()
    store = f"http://127.0.0.1:{client_port}"
    commands = {
        "etcd": [
            engine("etcd"),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
            "--log-level=error",
        ],
        "kube-apiserver": [
            engine("kube-apiserver"),
            f"--etcd-servers={store}",
            "--bind-address=127.0.0.1",
            f"--secure-port={secure_port}",
            f"--cert-dir={folder / 'certificates'}",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--service-account-issuer=https://test.invalid",
            f"--service-account-key-file={key_file}",
            f"--service-account-signing-key-file={key_file}",
            "--endpoint-reconciler-type=none",
            "--disable-admission-plugins=ServiceAccount",
        ],
    }
    made = Cluster(f"https://127.0.0.1:{secure_port}", folder / "certificates" / "apiserver.crt", folder, commands)
    try:
        for name in commands:
            made.start(name)
        made.connect()
        made.wait_ready()
        install(made)
        made.node(NODE, gpus=1)
        yield made
    finally:
        for process in reversed(made.processes.values()):
            end(process)


@pytest.fixture(scope="module")
def controller(cluster: Cluster) -> Iterator[ControllerProcess]:
    """One controller for the tests of a module; it finds no lease of an earlier one."""
    cluster.admin.delete(f"/apis/coordination.k8s.io/v1/namespaces/default/leases/{LEASE_NAME}")
    made = start_controller(cluster)
    try:
        eventually("the controller leads", lambda: made.leading)
        yield made
    finally:
        assert end(made.process) == 0, made.log.read_text()
        assert "Traceback" not in made.log.read_text(), made.log.read_text()
