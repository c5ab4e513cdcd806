"""The two doors: a stack file (`read_stack_file`) and the values that the engine hands over (`from_engine`)."""

from __future__ import annotations

import copy
import difflib
import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pydantic
import yaml

from infra.settings import image_lock
from infra.settings.base import FROM_TEXT
from infra.settings.contradictions import contradictions
from infra.settings.explanations import explained, follows, location_of, meant_by
from infra.settings.images import pulled
from infra.settings.mistakes import PROJECT, Location, Mistake, SettingsError, key_path, line_of, report, setting
from infra.settings.places import YAML_MISTAKES, Places
from infra.settings.sections import Settings
from infra.settings.shape import place_at

# Pulumi's own keys of a stack file (`ProjectStack` in Pulumi's sdk/go/common/workspace).
_PULUMI_KEYS = ("config", "encryptedkey", "encryptionsalt", "environment", "secretsprovider")


def parse(
    values: Mapping[str, Any],
    *,
    stack: str,
    source: str,
    text: bool = False,
    folder: Path | None = None,
    need_images: bool = True,
) -> Settings:
    """Check the configuration of a stack.

    Args:
        values: configuration by full key (`trainyard:target`), structured values already decoded.
        stack: the stack's name, for the commands in the message.
        source: where the values came from, for the message.
        text: numbers may come as text.
        folder: where the stack's image lock is; None: nothing was built for it.
        need_images: whether it is a mistake that an image which the stack runs was not built; otherwise a reference
            that nobody can pull stands for it, see `Images.built`.

    Raises:
        SettingsError: with all mistakes at once.
    """
    settings, mistakes = _check(values, stack, {}, text=text, folder=folder, need_images=need_images)
    if settings is None or mistakes:
        raise SettingsError(report(mistakes, source))
    return settings


def read_stack_file(path: Path, stack: str) -> Settings:
    """Read and check `Pulumi.<stack>.yaml`, with the stack's image lock beside it.

    Images that were not built yet are no mistake here (the stack file is right, and tells what to build): whoever is
    about to run them asks `require_images`.

    Raises:
        SettingsError: the file is missing, is not YAML, or has mistakes (all of them are listed).
    """
    try:
        written = path.read_text(encoding="utf-8")
    except OSError as error:
        known = sorted(p.name.removeprefix("Pulumi.").removesuffix(".yaml") for p in path.parent.glob("Pulumi.*.yaml"))
        raise SettingsError(
            f"stack {stack!r} cannot be read: {path}: {error.strerror}. Stacks here: {', '.join(known) or 'none'}."
            " Name one with `-s`, or run this in the folder that holds Pulumi.yaml."
        ) from None
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise SettingsError(
            f"{path} is not UTF-8 text (line {line} holds another encoding's character). Save it as UTF-8:"
            f" iconv -f latin1 -t utf-8 {shlex.quote(str(path))}"
        ) from None
    places = Places()
    try:
        places.add(yaml.compose(written, Loader=yaml.SafeLoader))
        document = {} if places.unreadable else yaml.safe_load(written) or {}
    except YAML_MISTAKES as error:
        where = str(error).replace('"<unicode string>"', path.name)  # PyYAML was given the text, not the file
        raise SettingsError(f"{path} is not YAML: {where}. Mend the file at that place.") from None
    if places.unreadable:
        raise SettingsError(f"{path}, {'; '.join(places.unreadable)}. Nothing was changed.")
    config = document.get("config") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(config, dict | None):
        raise SettingsError(f"{path}: must be a mapping with a mapping `config` in it, as in Pulumi.local.yaml")
    mistakes = [*_foreign_keys(document, places.lines), *places.mistakes(stack)]
    settings, more = _check(_with_text_keys(config or {}), stack, places.config_lines, text=False, folder=path.parent)
    if settings is None or mistakes or more:
        raise SettingsError(report(mistakes + more, str(path)))
    return settings


def from_engine(
    config: Mapping[str, Any], stack: str, folder: Path | None = None, *, need_images: bool = True
) -> Settings:
    """Check the values that the engine hands to the program: structured ones arrive as JSON text, the rest as text.

    Args:
        config: the values by full key.
        stack: the stack's name.
        folder: where the stack's image lock is; None: nothing was built for it.
        need_images: see `parse`.

    Raises:
        SettingsError: with all mistakes at once.
    """
    values = {key: _decode(value) for key, value in config.items()}
    source = f"Pulumi.{stack}.yaml"
    return parse(values, stack=stack, source=source, text=True, folder=folder, need_images=need_images)


def require_images(settings: Settings, stack: str) -> None:
    """Before a stack is brought up: was everything built that its own pods run?

    Raises:
        SettingsError: it was not.
    """
    if mistakes := list(_not_built(settings, stack, {})):
        raise SettingsError(report(mistakes, f"Pulumi.{stack}.yaml"))


def _decode(value: Any) -> Any:
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value  # a text that happens to begin so: its key says whether that may be
    return value


def _check(
    values: Mapping[str, Any],
    stack: str,
    lines: Mapping[Location, int],
    *,
    text: bool,
    folder: Path | None,
    need_images: bool = False,
) -> tuple[Settings | None, list[Mistake]]:
    """The settings, if every single value is right, and all mistakes."""
    prefix = f"{PROJECT}:"
    own = {key.removeprefix(prefix): value for key, value in values.items() if key.startswith(prefix)}
    mistakes = [mistake for key in values if (mistake := _wrong_prefix(key, lines))]
    wrong: list[Location] = []
    settings, draft = None, None
    try:
        draft = settings = _validated(own, text=text)
    except pydantic.ValidationError as error:
        problems = [problem for problem in error.errors(include_url=False) if not follows(problem)]
        mistakes += [explained(problem, stack, lines) for problem in problems]
        wrong = [location_of(problem) for problem in problems]
        draft = _draft(own, wrong, text=text)
        wrong += [meant for problem in problems if (meant := meant_by(problem))]
    for found in contradictions(draft, stack) if draft else ():
        if not any(_touches(place, bad) for place in found.by for bad in wrong):
            key = key_path(found.at)
            fix = f"{found.fix} -s {stack}" if found.fix else f"edit {key} in Pulumi.{stack}.yaml"
            mistakes.append(Mistake(key, found.what, fix, line_of(found.at, lines)))
    if draft and draft.target != "local" and ("target",) not in wrong:
        try:
            lock = image_lock.read(folder, stack) if folder else image_lock.ImageLock()
        except image_lock.ImageLockError as error:
            return settings, [*mistakes, _damaged(error, stack)]
        # Who names what stands for an image (a rehearsal does) knows that it was not built.
        named = "controller" in draft.images.model_fields_set or ("images", "controller") in wrong
        if need_images and not named:
            mistakes += _not_built(_with_images(draft, lock), stack, lines)
        settings = _with_images(settings, lock) if settings else None
    return settings, mistakes


def _with_images(settings: Settings, lock: image_lock.ImageLock) -> Settings:
    return settings.model_copy(update={"images": pulled(settings.images, lock)})


def _not_built(settings: Settings, stack: str, lines: Mapping[Location, int]) -> Iterator[Mistake]:
    if settings.images.built:
        return
    where: Location = ("images", "controller")
    what = f"is missing, and {image_lock.path_of(Path(), stack)} has none: it was not built yet"
    if settings.target == "aws":
        what += f" (and before the first build: trainyard up -s {stack} --only registry)"
    where_to = "" if settings.target == "aws" else " --registry REGISTRY/PATH"
    fix = f"{image_lock.build_command(stack)}{where_to}, or {setting(where, 'REGISTRY/controller:TAG')} -s {stack}"
    yield Mistake(key_path(where), what, fix, line_of(where, lines))


def _damaged(error: image_lock.ImageLockError, stack: str) -> Mistake:
    name = str(image_lock.path_of(Path(), stack))
    fix = f"git checkout -- {name}, or remove it and run {image_lock.build_command(stack)}"
    return Mistake(name, str(error).removeprefix(f"{name} "), fix)


def _validated(own: Mapping[str, Any], *, text: bool) -> Settings:
    return Settings.model_validate(own, by_alias=True, by_name=False, context=FROM_TEXT if text else None)


def _draft(own: Mapping[str, Any], wrong: list[Location], *, text: bool) -> Settings | None:
    """The settings as they would be without their wrong values, so that the others can be held against each other.

    What must be there gets a stand-in: nothing is concluded from it, see `Contradiction.by`.
    """
    values: Any = copy.deepcopy(dict(own))
    for *outer, last in sorted(wrong, key=len, reverse=True):
        parent = values
        for part in outer:
            parent = parent[part]
        place = place_at((*outer, last))
        if place and (place.required or isinstance(last, int)):
            parent[last] = place.example()
        else:
            parent.pop(last, None)
    try:
        return _validated(values, text=text)
    except pydantic.ValidationError:
        return None


def _touches(place: Location, bad: Location) -> bool:
    """Whether a wrong value is at a place, around it or in it."""
    shared = min(len(place), len(bad))
    return place[:shared] == bad[:shared]


def _wrong_prefix(key: str, lines: Mapping[Location, int]) -> Mistake | None:
    """A key of this project whose first part is missing or mistyped; None for good keys and those of providers."""
    prefix, colon, rest = key.partition(":")
    line = lines.get((key,))
    if not colon:
        what = f"has no namespace; keys of this project begin with '{PROJECT}:'"
        return Mistake(key, what, f"rename it to {PROJECT}:{key}", line)
    if prefix != PROJECT and difflib.get_close_matches(prefix, [PROJECT], cutoff=0.7):
        what = f"is not read: did you mean '{PROJECT}:{rest}'?"
        return Mistake(key, what, f"rename it to {PROJECT}:{rest}", line)
    return None


def _foreign_keys(document: Mapping[Any, Any], lines: Mapping[Location, int]) -> list[Mistake]:
    """Keys beside `config` that Pulumi does not know, and would pass over in silence."""
    mistakes = []
    for key in document:
        if not isinstance(key, str) or key in _PULUMI_KEYS:
            continue  # a key that is no text is reported as such
        close = difflib.get_close_matches(key, _PULUMI_KEYS, n=1)
        if key.startswith(f"{PROJECT}:"):
            what, fix = "stands beside `config`, not in it", "indent it below `config:`"
        elif close:
            what, fix = f"unknown key; did you mean {close[0]!r}?", f"rename it to {close[0]}"
        else:
            what, fix = f"unknown key; Pulumi knows here: {', '.join(_PULUMI_KEYS)}", "remove it"
        mistakes.append(Mistake(key, what, fix, lines.get((key,))))
    return mistakes


def _with_text_keys(value: Any, done: dict[int, Any] | None = None) -> Any:
    """A decoded document without the keys that are no text: they are reported by themselves."""
    done = {} if done is None else done  # what several aliases name is taken once
    if id(value) not in done:
        if isinstance(value, dict):
            kept = {key: _with_text_keys(inner, done) for key, inner in value.items() if isinstance(key, str)}
            done[id(value)] = kept
        elif isinstance(value, list):
            done[id(value)] = [_with_text_keys(inner, done) for inner in value]
        else:
            return value
    return done[id(value)]
