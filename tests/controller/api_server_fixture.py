"""Fixture `cluster`: a real etcd and kube-apiserver for a test session; test modules name it in `pytest_plugins`."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from real_api_server import (
    ADMIN_TOKEN,
    CONTROLLER_TOKEN,
    CONTROLLER_USER,
    Cluster,
    end,
    engine,
    eventually,
    free_port,
    install,
)


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
    commands = [
        [
            engine("etcd"),
            f"--data-dir={folder / 'etcd'}",
            f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",
            "--log-level=error",
        ],
        [
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
    ]
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            log = (folder / f"{Path(command[0]).name}.log").open("wb")
            processes.append(subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True))
        ca = folder / "certificates" / "apiserver.crt"
        eventually("certificate of the API server", ca.exists, within=30)
        made = Cluster(f"https://127.0.0.1:{secure_port}", ca, folder)

        def is_ready() -> bool:
            assert all(process.poll() is None for process in processes), "an engine ended: see its log"
            try:
                return made.admin.get("/readyz").status_code == 200
            except httpx2.HTTPError:
                return False

        eventually("API server ready", is_ready, within=60, pause=0.2)
        install(made)
        yield made
    finally:
        for process in reversed(processes):
            end(process)
