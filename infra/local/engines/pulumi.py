"""The variables with which `pulumi` sees one stack's state and nothing else, and the plugins in its home."""

import contextlib
import os
import shutil
import tempfile
from pathlib import Path

from infra.local.engines.catalogue import CATALOGUE
from infra.local.engines.discovery import Engine, locate, plugin_path
from infra.local.engines.errors import EngineError

PROVIDER = "pulumi-resource-kubernetes"


def pulumi_environment(state_dir: Path) -> dict[str, str]:
    """The environment for the CLI: state and plugins in the state folder, nothing fetched, nothing asked.

    The passphrase is empty: a local stack holds no secrets, and its state never leaves this computer.

    Args:
        state_dir: the stack's state folder; its `pulumi` folder is made, open to its owner only.

    Raises:
        EngineError: there is no Pulumi yet, or the folder cannot be made.
    """
    pulumi = locate("pulumi")
    if pulumi is None:
        raise EngineError("the pulumi engine is missing. Run `trainyard engines build` (or `trainyard up`) first.")
    root = state_dir / "pulumi"
    for folder in (root, root / "home", root / "backend"):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise EngineError(f"the state folder {folder} cannot be made: {error.strerror}.") from error
    path = os.environ.get("PATH", os.defpath)
    if shutil.which("pulumi") != str(pulumi.path):  # else the user's order stays, which decides on more than pulumi
        path = os.pathsep.join(dict.fromkeys([str(pulumi.path.parent), *path.split(os.pathsep)]))
    return {
        "PULUMI_HOME": str(root / "home"),
        "PULUMI_BACKEND_URL": f"file://{root / 'backend'}",
        "PULUMI_CONFIG_PASSPHRASE": "",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
        "PULUMI_DISABLE_AUTOMATIC_PLUGIN_ACQUISITION": "true",
        "PATH": path,
    }


def install_plugins(state_dir: Path, provider: Engine | None = None) -> Path:
    """Puts the Kubernetes provider into the state's Pulumi home, as a link; milliseconds, and safe to repeat.

    Args:
        state_dir: the stack's state folder.
        provider: the plugin, where the caller has it at hand.

    Returns:
        The plugin in the home.

    Raises:
        EngineError: there is no provider yet, or the home cannot be written.
    """
    spec = CATALOGUE[PROVIDER]
    plugin = state_dir / "pulumi" / "home" / plugin_path(spec)
    found = provider or locate(PROVIDER)
    if found is None:
        raise EngineError(f"the engine {PROVIDER} is missing. Run `trainyard engines build` first.")
    if found.path == plugin or _points_to(plugin, found.path):
        return plugin
    try:
        plugin.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=plugin.parent) as temporary:
            link = Path(temporary, plugin.name)
            link.symlink_to(found.path)
            link.replace(plugin)
    except OSError as error:
        raise EngineError(f"the plugin {plugin} cannot be put in place: {error.strerror}.") from error
    return plugin


def _points_to(link: Path, target: Path) -> bool:
    with contextlib.suppress(OSError):
        return link.readlink() == target and target.exists()
    return False
