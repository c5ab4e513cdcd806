"""Takes out of the engine's data what nobody may read in a report, before anything else looks at it.

Whatever may be a secret is replaced by the text `SECRET`: what the engine marks as one, and what people and tools put
into ordinary places. It is better to hide too much here: a report goes to everybody who can read a pull request.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Mapping
from typing import Any, Final

SECRET: Final = "[secret]"  # noqa: S105 - what stands in the place of one; the engine's own word
UNKNOWN: Final = type("Unknown", (), {"__repr__": lambda _: "[unknown]", "__bool__": lambda _: False})()
"""Stands for what is known only after `up`. False, like what is absent: to tell them apart, compare by `is`."""

_SIGNATURE = "4dabf18193072939515e22adb298388d"  # the key by which the engine marks values that are no plain data
_SECRET_SIGNATURE = "1b47061264138c4ac30d75fd1eb44270"  # noqa: S105 - public names from here on, none is a secret
_REFERENCE_SIGNATURE = "5cf8f73096256a8f31e491e813e4eb8e"
_OUTPUT_SIGNATURE = "d0e6a833031e9bbcd3f4e8bde6ca49a4"
_KINDS = {"c44067f5952c0a294b673a41bacd8c17": "[file]", "0def7320c3a5731c473e5ecbe6d01bc7": "[archive]"}
_UNKNOWNS = frozenset(
    {
        "04da6b54-80e4-46f7-96ec-b56ff0331ba9",  # text, and what is serialized without its type
        "1c4a061d-8072-4f0a-a4cb-0ff528b18fe7",
        "3eeb2bf0-c639-47a8-9e75-3b44932eb421",
        "6a19a0b0-7e62-4c92-b797-7f8e31da9cc2",
        "030794c1-ac77-496b-92df-f27374a8bd58",
        "e48ece36-62e2-4504-bad9-02848725956a",
        "dd056dcd-154b-4c76-9bd3-c8f88648b5ff",
    }
)

_WORDS = (
    r"pass(?:word|wd|phrase|code)|secret|token|api[_.-]?key|access[_.-]?key|private[_.-]?key|key[_.-]?data"
    r"|(?:license|signing|encryption|master|account|shared)[_.-]?key"
    r"|credential|kube[_.-]?config|auth[_.-]?header|authorization|connection[_.-]?string|cookie|webhook[_.-]?url"
)
_SECRET_NAME = re.compile(_WORDS, re.IGNORECASE)
_SECRET_SCALAR = re.compile(r"(?:^|[_.-])(?:pwd|auth)$|[a-z]Pwd$", re.IGNORECASE)
"""Names that hold a secret only where their value is text: `auth: {enabled: true}` is none."""
_NO_SECRET_NAME = re.compile(
    r"(?:Tokens|TokenName|SecretName|secretNamespace|secretArn|SecretRef|KeyRef|TokenPath|ExpirationSeconds|TtlSeconds"
    r"|authorizationMode|Audience|Regex)$|^(?:http_?tokens|secret_?name|secretNamespace|credentialsMode)$",
    re.IGNORECASE,
)
"""Names with such a word that tell about a secret and hold none: `httpTokens: required`, `secretName: tls`."""
_OPAQUE_NAME = re.compile(r"^(?:user_?data(?:_?base64)?|custom_?data|bootstrap_?script)$", re.IGNORECASE)
"""Programs of machines: tokens are written into them."""

_INSIDE = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?<![A-Za-z0-9])(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9])"),
    re.compile(
        r"(?<![A-Za-z0-9])(?:gh[pousr]_[A-Za-z0-9]{20,}|github_pat_\w{20,}|glpat-[\w-]{20,}|hf_[A-Za-z0-9]{20,})"
    ),
    re.compile(r"(?<![A-Za-z0-9])(?:xox[abprs]-[\w-]{10,}|sk-[\w-]{20,}|pul-[0-9a-f]{40}|dckr_pat_[\w-]{20,})"),
    re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"https://(?:hooks\.slack\.com/services|discord(?:app)?\.com/api/webhooks)/[\w/-]+"),
    re.compile(r"https://[\w.-]+\.webhook\.office\.com/\S+"),
)
"""Credentials that are known by their form, wherever they are."""
_PART = r"[\w.-]{0,60}"  # bounded: a name made of `password` ten thousand times would take minutes
_SECRET_MANIFEST = re.compile(r"^[ -]{0,60}kind: *[\"']?Secret[\"']? *\r?$", re.MULTILINE)
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
_IN_QUERY = re.compile(r"([?&](?:sig|[\w-]*signature)=)[^&\s\"'`]+", re.IGNORECASE)
_FLAG = re.compile(rf"--?{_PART}(?:{_WORDS}){_PART}", re.IGNORECASE)
_AFTER_FLAG = re.compile(
    rf"((?:^|\s)(?:--?{_PART}(?:{_WORDS}){_PART}|login(?=\s)[^\n]{{0,200}}?\s(?:-p|password))\s+)(?!-)([^\s\"'`]+)",
    re.IGNORECASE,
)
"""`--password x`, `docker login -p x`, and the lines of `.netrc`."""
_REFERENCES = frozenset(
    {"name", "namespace", "key", "secretName", "path", "audience", "kind", "apiVersion", "medium", "arn", "mode"}
)
"""Members of what is named after a secret that only say where it is, as in `secret: {secretName: tls}`."""
_AFTER_NAME = re.compile(
    rf"""((?:^|[\s;&?,{{(\[|"'`-]){_PART}(?:{_WORDS}){_PART}["'`]?(?:\s*[:=]\s*|\s+(?=["'`]))(?:(?:bearer|basic)\s+)?)"""
    r"""("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'&;,{\[\]}]+)""",
    re.IGNORECASE,
)
"""`--password=x`, `AWS_SECRET_ACCESS_KEY: "x"`, `?token=x`."""
_BEARER = re.compile(r"\b(bearer\s+)[\w.~+/=-]{8,}", re.IGNORECASE)
_SIGNS_INSIDE = (
    *("private key", "akia", "asia", "eyj", "hooks.slack", "webhook", "sk-", "pul-", "xox", "dckr_", "glpat-", "hf_"),
    *("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),
)
_SIGNS_OF_NAMES = ("pass", "secret", "token", "key", "credential", "config", "auth", "connection", "cookie", "webhook")
"""What one of the above has in it, for a quick look: most texts have none of it."""
_DEPTH = 60


@functools.lru_cache(maxsize=10_000)
def is_secret_name(name: str) -> bool:
    """Whether what goes by this name is hidden."""
    if _OPAQUE_NAME.search(name):
        return True
    return bool(_SECRET_NAME.search(name)) and not _NO_SECRET_NAME.search(name)


def scrub(value: Any, depth: int = 0) -> Any:
    """Plain data without secrets; what is unknown becomes `UNKNOWN`.

    Args:
        value: data as the engine writes it into JSON.
        depth: how deep in a whole it is.
    """
    if isinstance(value, str):
        if value in _UNKNOWNS:
            return UNKNOWN
        return scrub_text(value, depth)
    if depth > _DEPTH:  # nobody writes such a thing to be read
        return "[too deep]" if isinstance(value, dict | list) else value
    if isinstance(value, dict):
        if _SIGNATURE in value:
            return _special(value, depth)
        return _mapping(value, depth)
    if isinstance(value, list):
        return _listed(value, depth)
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # Python reads and writes NaN, which is no JSON
    return value


def scrub_text(text: str, depth: int = 0) -> str:
    """Text without the credentials in it."""
    if len(text) < 6:
        return text
    if text[0] in "{[" and text[-1] in "}]" and depth <= _DEPTH:
        try:
            inside = json.loads(text)
        except (ValueError, RecursionError):
            pass
        else:
            clean = scrub(inside, depth + 1)
            return text if clean == inside else json.dumps(clean, ensure_ascii=False, default=repr)
    lower = text.lower()
    if "secret" in lower and _SECRET_MANIFEST.search(text):
        return SECRET
    if any(sign in lower for sign in _SIGNS_INSIDE):
        for form in _INSIDE:
            text = form.sub(SECRET, text)
    if "://" in text:
        text = _IN_QUERY.sub(rf"\g<1>{SECRET}", _IN_ADDRESS.sub(SECRET, text))
    if any(sign in lower for sign in _SIGNS_OF_NAMES) and _SECRET_NAME.search(text):
        text = _AFTER_FLAG.sub(rf"\g<1>{SECRET}", _AFTER_NAME.sub(_hidden_after_name, text))
    if "login" in lower:
        text = _AFTER_FLAG.sub(rf"\g<1>{SECRET}", text)
    return _BEARER.sub(rf"\g<1>{SECRET}", text) if "bearer" in lower else text


def _hidden_after_name(found: re.Match[str]) -> str:
    name = re.sub(r"^\W+|\W+$", "", found[1].rstrip(" \t:=\"'`"))
    if found[2].lower() in {"true", "false", "null", "required", "optional", "bearer", "basic"}:
        return found[0]
    return found[0] if _NO_SECRET_NAME.search(name) else f"{found[1]}{SECRET}"


def _special(value: Mapping[str, Any], depth: int) -> Any:
    signature = value[_SIGNATURE]
    if signature == _SECRET_SIGNATURE:
        return SECRET
    if signature == _OUTPUT_SIGNATURE:
        if value.get("secret"):
            return SECRET
        return scrub(value["value"], depth + 1) if "value" in value else UNKNOWN
    if signature == _REFERENCE_SIGNATURE:
        return scrub_text(str(value.get("urn", "[resource]")))
    return _KINDS.get(str(signature), SECRET)  # a kind that this does not know may be one


def _mapping(value: Mapping[str, Any], depth: int) -> dict[str, Any]:
    kubernetes_secret = value.get("kind") == "Secret"
    # `- name: DB_PASSWORD, value: x`, as pods, ECS and others write their environment
    variable = value.get("name", value.get("key"))
    named_secret = (isinstance(variable, str) and is_secret_name(variable)) or value.get("type") == "SecureString"
    clean: dict[str, Any] = {}
    for name, inside in value.items():
        key = _clean_name(name)
        if kubernetes_secret and key in {"data", "stringData", "binaryData"}:
            clean[key] = _hidden(inside)
        elif key == "kubectl.kubernetes.io/last-applied-configuration":
            clean[key] = SECRET
        elif isinstance(inside, str | int | float) and not isinstance(inside, bool) and _hides(key):
            clean[key] = UNKNOWN if inside in _UNKNOWNS else SECRET if inside != "" else ""
        elif named_secret and key in {"value", "Value", "default"} and inside != "":
            clean[key] = UNKNOWN if isinstance(inside, str) and inside in _UNKNOWNS else _hidden(inside)
        elif isinstance(inside, list | dict) and is_secret_name(key):
            clean[key] = _hidden_inside(scrub(inside, depth + 1))
        else:
            clean[key] = scrub(inside, depth + 1)
    return clean


@functools.lru_cache(maxsize=10_000)
def _clean_name(name: str) -> str:
    """A name without the credentials in it; the same few come thousands of times."""
    return scrub_text(name)


@functools.lru_cache(maxsize=10_000)
def _hides(name: str) -> bool:
    return is_secret_name(name) or _SECRET_SCALAR.search(name) is not None


def _listed(value: list[Any], depth: int) -> list[Any]:
    """A list; in one of arguments what follows `--password` is hidden."""
    clean: list[Any] = []
    for index, one in enumerate(value):
        flag = value[index - 1] if index else None
        after = isinstance(flag, str) and _FLAG.fullmatch(flag) and not _NO_SECRET_NAME.search(flag)
        hidden = after and isinstance(one, str) and not one.startswith("-") and one not in _UNKNOWNS
        clean.append(SECRET if hidden else scrub(one, depth + 1))
    return clean


def _hidden_inside(clean: Any) -> Any:
    """What is named after a secret, without the texts in it that are no mere references."""
    if isinstance(clean, dict):
        return {
            key: inside if key in _REFERENCES or _NO_SECRET_NAME.search(key) else _hidden_inside(inside)
            for key, inside in clean.items()
        }
    if isinstance(clean, list):
        return [_hidden_inside(one) for one in clean]
    return SECRET if isinstance(clean, str) and clean else clean


def _hidden(value: Any) -> Any:
    """The names of what is in it, and nothing else."""
    if isinstance(value, dict) and _SIGNATURE not in value:
        return dict.fromkeys(value, SECRET)
    return value if value is None or isinstance(value, bool) else SECRET
