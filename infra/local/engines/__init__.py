"""The programs that the local cluster consists of, from PATH where the version fits, else built once from Go modules.

`locate` answers in milliseconds and builds nothing; `ensure` builds what is missing.
"""

from collections.abc import Iterable

from infra.local.engines.catalogue import CATALOGUE, EVERY_ENGINE, LANGUAGE_HOST, LOCAL_ENGINES
from infra.local.engines.discovery import Engine, locate
from infra.local.engines.errors import EngineError
from infra.local.engines.progress import BuildProgress, NoProgress

__all__ = [
    "EVERY_ENGINE",
    "LOCAL_ENGINES",
    "BuildProgress",
    "Engine",
    "EngineError",
    "NoProgress",
    "ensure",
    "locate",
]


def ensure(names: Iterable[str] = EVERY_ENGINE, progress: BuildProgress | None = None) -> dict[str, Engine]:
    """Finds engines, and builds those that are nowhere to be found.

    Args:
        names: which; by default all.
        progress: told about builds.

    Returns:
        Each engine by its name.

    Raises:
        EngineError: one is missing and cannot be built.
    """
    wanted = list(dict.fromkeys(names))
    found = {name: locate(name) for name in wanted}
    missing = dict.fromkeys("pulumi" if name == LANGUAGE_HOST else name for name in wanted if not found[name])
    if missing:
        from infra.local.engines.building import build  # noqa: PLC0415 - not needed on most starts

        build([CATALOGUE[name] for name in missing], progress or NoProgress())
        found |= {name: locate(name) for name in wanted if not found[name]}
    for name, engine in found.items():
        if engine is None:
            raise EngineError(f"{name} was built but is gone again: another process empties the cache. Run this again.")
    return {name: engine for name, engine in found.items() if engine}
