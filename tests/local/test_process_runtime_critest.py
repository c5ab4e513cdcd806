"""CRI's own validation suite, critest, against the process runtime: as root where we are root, and as an ordinary user.

`infra/local/process_runtime/critest/excluded.yaml` lists the specs that cannot hold, each with its reason. Every other
one must pass, and none of the listed ones may.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from infra.local.engines.cache import cache_directory

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1200)]

RUNTIME = Path(__file__).parents[2] / "infra/local/process_runtime"
SUITE = RUNTIME / "critest"
EXCLUDED: list[dict[str, Any]] = yaml.safe_load((SUITE / "excluded.yaml").read_text())

# What the suite's commands use, in its containers and outside.
TOOLS = ("hostname", "ipcmk", "ipcs", "netstat", "pgrep", "pidof")
# The suite mostly waits, so its two halves run side by side, each in a network of its own.
HALVES = (["--ginkgo.focus=Security Context"], ["--ginkgo.skip=Security Context"])
NOBODY = 65534

E2E = "registry.k8s.io/e2e-test-images"
STAGING = "gcr.io/k8s-staging-cri-tools"
DIGEST = "sha256:9700f9a2f5bf2c45f2f605a0bd3bce7cf37420ec9d3ed50ac2758413308766bf"  # the suite's own


@pytest.fixture(scope="module")
def binaries() -> Path:
    """A folder with the suite, the runtime and the stand-ins for what is in the suite's images."""
    missing = [tool for tool in TOOLS if not shutil.which(tool)]
    assert not missing, f"critest uses {', '.join(missing)}: install net-tools, procps, util-linux, hostname"
    lock = hashlib.sha256((SUITE / "go.sum").read_bytes() + (SUITE / "go.mod").read_bytes()).hexdigest()[:16]
    folder = cache_directory() / "critest" / f"{lock}-{platform.machine()}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "critest").exists():  # minutes, so kept
        go(SUITE, "test", "-c", "-trimpath", "-o", folder / "critest.new", "sigs.k8s.io/cri-tools/cmd/critest")
        (folder / "critest.new").rename(folder / "critest")
    go(RUNTIME, "build", "-o", folder / "process-runtime", ".")
    go(SUITE, "build", "-o", folder / "isolate", "./isolate")
    go(SUITE, "build", "-o", folder / "nginx", "./web_server")
    return folder


def go(module: Path, *arguments: str | Path) -> None:
    environment = os.environ | {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    done = subprocess.run(
        ["go", *arguments], cwd=module, env=environment, capture_output=True, text=True, check=False, timeout=900
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture
def folder(binaries: Path, who: str) -> Iterator[Path]:
    """A folder that belongs to who runs the suite, with a copy of the programs."""
    # Not pytest's own: other users may not enter it, and its long path leaves no room for a socket's name.
    made = Path(tempfile.mkdtemp(prefix="critest-"))
    for program in ("critest", "process-runtime", "isolate"):
        shutil.copy2(binaries / program, made)
    (made / "image").mkdir()
    shutil.copy2(SUITE / "stand_ins/top", made / "image")
    for server in ("nginx", "httpd"):
        shutil.copy2(binaries / "nginx", made / "image" / server)
    if who != "root" and os.geteuid() == 0:
        for path in (made, *made.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
    yield made
    shutil.rmtree(made)


def write_node(folder: Path, stand_ins: Path) -> None:
    """The node and its image table: a shell for most of the suite's images, a web server for the others."""
    folder.mkdir(parents=True)
    common = {"environment": {"PATH": f"{stand_ins}:/usr/sbin:/usr/bin:/sbin:/bin"}, "mounts": [str(stand_ins)]}
    shell = common | {"entrypoint": ["sh"]}
    pause = shell | {"cmd": ["-c", "sleep infinity"], "digest": "sha256:" + "9" * 64}
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    images: dict[str, Any] = {
        f"{E2E}/busybox:1.29-2": shell,
        f"{E2E}/nginx:1.14-2": common | {"entrypoint": [f"{stand_ins}/nginx", "80"]},
        f"{E2E}/httpd:2.4.39-4": common | {"entrypoint": [f"{stand_ins}/httpd", "80"]},
        f"{STAGING}/hostnet-nginx-{machine}": common | {"entrypoint": [f"{stand_ins}/nginx", "12003"]},
        f"{STAGING}/test-image-user-uid": shell | {"user": "1002"},
        f"{STAGING}/test-image-user-username": shell | {"user": "www-data"},
        f"{STAGING}/test-image-user-uid-group": shell | {"user": "1003:users"},
        f"{STAGING}/test-image-user-username-group": shell | {"user": "www-data:users"},
        f"{STAGING}/test-image-predefined-group": shell,
        f"{STAGING}/test-image-latest": shell,
        f"{STAGING}/test-image-tag:test": shell,
        f"{STAGING}/test-image-tag:all": shell,
        f"{STAGING}/test-image-digest@{DIGEST}": shell | {"digest": DIGEST},
        "registry.k8s.io/pause:3.9": pause,
        "k8s.gcr.io/pause:3.9": pause,
    }
    for number in "123":
        images[f"{STAGING}/test-image-{number}:latest"] = shell
        images[f"{STAGING}/test-image-tags:{number}"] = shell | {"digest": "sha256:" + "7" * 64}
    (folder / "images.json").write_text(json.dumps({"images": images}))
    node = {
        "name": "critest",
        "dir": str(folder),
        "socket": str(folder / "cri.sock"),
        "podNetwork": "127.98.1.0/24",
        "streamingAddress": "127.98.1.1",
        "images": str(folder / "images.json"),
    }
    (folder / "node.json").write_text(json.dumps(node))


RUN = """
set -u
"$1/process-runtime" serve --config "$2/node.json" >"$2/log" 2>&1 &
runtime=$!
while ! [ -S "$2/cri.sock" ] && kill -0 $runtime 2>/dev/null; do sleep 0.1; done
folder=$2 programs=$1
shift 2
cd "$folder"
"$programs/critest" -runtime-endpoint "unix://$folder/cri.sock" -ginkgo.no-color -ginkgo.json-report report.json "$@"
kill $runtime
wait $runtime
"""


def run_half(programs: Path, node: Path, who: str, arguments: list[str]) -> list[dict[str, Any]]:
    """Runs one half of the suite and gives its specs."""
    write_node(node, programs / "image")
    not_run = "|".join(re.escape(entry["spec"]) for entry in EXCLUDED if entry.get("run") is False)
    command = ["sh", "-c", RUN, "sh", str(programs), str(node), *arguments, f"--ginkgo.skip={not_run}"]
    as_user: list[str] = []
    if os.geteuid() == 0:
        os.chown(node, *(2 * (0 if who == "root" else NOBODY,)))
        if who != "root":
            as_user = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    done = subprocess.run(
        [*as_user, str(programs / "isolate"), *command],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(node), "TMPDIR": "/tmp"},  # noqa: S108
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )
    report = node / "report.json"
    assert report.exists(), done.stdout[-3000:] + done.stderr[-3000:] + (node / "log").read_text()
    (suite,) = json.loads(report.read_text())
    return [spec for spec in suite["SpecReports"] if spec["LeafNodeType"] == "It"]


def full_name(spec: dict[str, Any]) -> str:
    labels = "".join(f" [{label}]" for label in spec.get("LeafNodeLabels") or [])
    return " ".join([*spec["ContainerHierarchyTexts"], spec["LeafNodeText"]]) + labels


def is_excluded(spec: dict[str, Any], who: str) -> bool:
    return any(
        spec["LeafNodeText"].endswith(entry["spec"])
        for entry in EXCLUDED
        if entry.get("for") in (None, "ordinary user" if who != "root" else None)
    )


@pytest.mark.parametrize("who", ["root", "ordinary user"] if os.geteuid() == 0 else ["ordinary user"])
def test_the_runtime_passes_every_spec_that_can_hold(folder: Path, who: str) -> None:
    with ThreadPoolExecutor() as pool:
        halves = pool.map(lambda half: run_half(folder, folder / f"half-{half}", who, HALVES[half]), range(len(HALVES)))
        specs = [spec for half in halves for spec in half]
    passed = [spec for spec in specs if spec["State"] == "passed"]
    failed = [spec for spec in specs if spec["State"] not in ("passed", "skipped", "pending")]
    unexpected = {full_name(spec): spec["Failure"]["Message"][:500] for spec in failed if not is_excluded(spec, who)}
    outdated = [full_name(spec) for spec in passed if is_excluded(spec, who)]
    print(f"critest as {who}: {len(passed)} passed, {len(failed)} failed as listed in excluded.yaml")
    assert not unexpected
    assert not outdated, f"these pass: take them out of {SUITE / 'excluded.yaml'}"
    assert len(passed) >= 80, "most specs were not run at all"


def test_every_exclusion_names_a_spec_and_a_reason() -> None:
    for entry in EXCLUDED:
        assert set(entry) <= {"spec", "reason", "for", "run"}
        assert len(entry["reason"]) > 30
        assert entry.get("for") in (None, "ordinary user")
