"""The rendezvous store of a job as a process of its own: torch's own launchers meet there, none of them its host."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

from local_agents import PATIENCE, ROOT, free_port, wait_for

STORE_HOST = ROOT / "training" / "launch" / "store_host.py"
SCRIPT = """
import os, torch.distributed as dist
dist.init_process_group("gloo")
print("world of", dist.get_world_size(), "generation", os.environ["TORCHELASTIC_RUN_ID"], flush=True)
dist.destroy_process_group()
"""


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_launchers_meet_at_a_store_that_none_of_them_hosts_and_it_outlives_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    port = free_port()
    # as the controller starts it, in an image that lacks this package
    command = [sys.executable, "-c", STORE_HOST.read_text(), "--host=127.0.0.1", f"--port={port}"]
    store = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    agents: list[subprocess.Popen[str]] = []
    try:
        wait_for(lambda: listens(port), what="the store listens")
        for generation in ("j-1", "j-2"):  # the second after the first has closed its rendezvous
            environment = os.environ | {
                "PET_RDZV_BACKEND": "c10d",
                "PET_RDZV_ENDPOINT": f"127.0.0.1:{port}",
                "PET_RDZV_ID": generation,
                "PET_RDZV_CONF": "join_timeout=900,last_call_timeout=5,is_host=false",
                "PET_NNODES": "2:2",
                "PET_LOCAL_ADDR": "127.0.0.1",
            }
            launch = [sys.executable, "-m", "torch.distributed.run", str(script)]
            agents = [
                subprocess.Popen(launch, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
                for _ in range(2)
            ]
            said = [agent.communicate(timeout=2 * PATIENCE)[0] for agent in agents]
            assert [agent.returncode for agent in agents] == [0, 0]
            assert all(f"world of 2 generation {generation}" in each for each in said)
        assert store.poll() is None
    finally:
        for process in (*agents, store):
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
    assert store.wait(PATIENCE) == 0


def test_an_address_of_another_computer_is_told_without_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, str(STORE_HOST), "--host=192.0.2.1"],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2
    assert "cannot listen on 192.0.2.1:29400" in done.stderr
    assert "Traceback" not in done.stderr
