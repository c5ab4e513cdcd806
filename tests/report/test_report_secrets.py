"""No secret gets into a report, wherever it was, and what is none stays readable."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from report_previews import (
    SECRET_SIGNATURE,
    SIGNATURE,
    UNKNOWN_TEXT,
    broken_rule,
    digest,
    lines,
    said,
    step,
    summary,
)

from infra.cli.report_shown import show_report
from infra.report.document import document
from infra.report.markdown import markdown
from infra.report.model import build
from infra.report.preview import from_text
from infra.report.sarif import sarif
from infra.report.secrets import SECRET, UNKNOWN, scrub

PLANTED = "hunter2-PLANTED"
ENCODED = base64.b64encode(PLANTED.encode()).decode()
SECRETS_OBJECT = "kubernetes:core/v1:Secret"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.PLANTEDplantedPLANTED"
PEM = "-----BEGIN RSA PRIVATE KEY-----\nPLANTED\n-----END RSA PRIVATE KEY-----"

PLACES: dict[str, tuple[str, Any]] = {
    "marked by the engine": ("aws:x:X", {"value": {SIGNATURE: SECRET_SIGNATURE, "ciphertext": PLANTED}}),
    "marked, with its plain text": ("aws:x:X", {"value": {SIGNATURE: SECRET_SIGNATURE, "plaintext": PLANTED}}),
    "a mark that nobody knows": ("aws:x:X", {"value": {SIGNATURE: "ffff", "value": PLANTED}}),
    "a secret output": (
        "aws:x:X",
        {"value": {SIGNATURE: "d0e6a833031e9bbcd3f4e8bde6ca49a4", "secret": True, "value": PLANTED}},
    ),
    "data of a Secret": (SECRETS_OBJECT, {"kind": "Secret", "data": {"a": PLANTED}}),
    "stringData of a Secret without its kind": (SECRETS_OBJECT, {"stringData": {"plain": PLANTED}}),
    "a Secret inside something": ("aws:x:X", {"manifests": [{"kind": "Secret", "stringData": {"a": PLANTED}}]}),
    "a Secret written as JSON": (
        "aws:x:X",
        {"manifest": json.dumps({"kind": "Secret", "data": {"a": PLANTED}})},
    ),
    "what was applied last": (
        "kubernetes:core/v1:ConfigMap",
        {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": PLANTED}}},
    ),
    "user data": ("aws:ec2/launchTemplate:LaunchTemplate", {"userData": ENCODED}),
    "user data in plain text": ("aws:ec2/instance:Instance", {"userData": f"#!/bin/sh\nexport X={PLANTED}"}),
    "user_data_base64": ("aws:ec2/instance:Instance", {"userDataBase64": PLANTED}),
    "a password": ("aws:rds/instance:Instance", {"password": PLANTED}),
    "a masterPassword": ("aws:rds/instance:Instance", {"masterPassword": PLANTED}),
    "passwords": ("aws:elasticache/user:User", {"passwords": [PLANTED]}),
    "an access key": ("aws:x:X", {"aws_access_key": PLANTED}),
    "a kubeconfig": ("pulumi:providers:kubernetes", {"kubeconfig": f"users: {PLANTED}"}),
    "a variable of a pod": (
        "kubernetes:core/v1:Pod",
        {"spec": {"containers": [{"env": [{"name": "WANDB_API_KEY", "value": PLANTED}]}]}},
    ),
    "variables as a mapping": ("aws:lambda/function:Function", {"environment": {"variables": {"HF_TOKEN": PLANTED}}}),
    "JSON inside JSON": ("aws:x:X", {"policy": json.dumps({"a": json.dumps({"password": PLANTED})})}),
    "an argument": ("kubernetes:core/v1:Pod", {"spec": {"containers": [{"args": [f"--db-password={PLANTED}"]}]}}),
    "a line of a script": ("kubernetes:core/v1:ConfigMap", {"data": {"run.sh": f"export API_TOKEN='{PLANTED}'\nrun"}}),
    "YAML in a text": (
        "kubernetes:core/v1:ConfigMap",
        {"data": {"values.yaml": f'a: 1\nadminPassword: "{PLANTED}"\n'}},
    ),
    "an address with a password": ("aws:x:X", {"url": f"postgres://user:{PLANTED}@db.example.com/x"}),
    "a header": ("aws:x:X", {"header": f"Authorization: Bearer {PLANTED}"}),
    "a parameter of an address": ("aws:x:X", {"url": f"https://example.com/x?token={PLANTED}"}),
    "a private key anywhere": ("aws:x:X", {"text": PEM.replace("PLANTED", PLANTED)}),
    "a JSON web token": ("aws:x:X", {"text": f"use {JWT}"}),
    "a pwd": ("aws:x:X", {"pwd": PLANTED, "dbPwd": PLANTED}),
    "a token as the user of an address": ("aws:x:X", {"url": f"https://{PLANTED}@github.com/a/b"}),
    "the signature of an address": ("aws:x:X", {"url": f"https://x.example/a?X-Amz-Signature={PLANTED}&sig={PLANTED}"}),
    "an argument after its flag": ("kubernetes:core/v1:Pod", {"spec": {"args": ["--db-password", PLANTED]}}),
    "a flag in a line": ("kubernetes:core/v1:Pod", {"spec": {"command": [f"mysql -u a --password {PLANTED}"]}}),
    "a login": ("command:local:Command", {"create": f"docker login -u a -p {PLANTED}"}),
    "a netrc": ("aws:x:X", {"netrc": f"machine a login b password {PLANTED}"}),
    "a login of a registry": ("aws:x:X", {"data": json.dumps({"auths": {"registry.example": {"auth": PLANTED}}})}),
    "a mapping named after a secret": (
        "aws:x:X",
        {"password": {"value": PLANTED}, "credentials": {"a": {"b": PLANTED}}},
    ),
    "a list of lists of passwords": ("aws:x:X", {"passwords": [[PLANTED], {"v": PLANTED}]}),
    "the name of a property": ("aws:x:X", {f"password={PLANTED}": 1}),
    "keys that sign, encrypt and license": (
        "aws:x:X",
        {"signingKey": PLANTED, "encryptionKey": PLANTED, "licenseKey": PLANTED},
    ),
    "a webhook of Discord": ("aws:x:X", {"url": f"https://discord.com/api/webhooks/1/{PLANTED}"}),
    "a parameter of SSM": ("aws:ssm/parameter:Parameter", {"type": "SecureString", "name": "a", "value": PLANTED}),
    "a list of Secrets": ("kubernetes:core/v1:SecretList", {"items": [{"data": {"a": PLANTED}}]}),
    "a patch of a Secret": ("kubernetes:core/v1:SecretPatch", {"stringData": {"a": PLANTED}}),
    "a Secret written as YAML": (
        "kubernetes:yaml:ConfigGroup",
        {"yaml": f"apiVersion: v1\nkind: Secret\nstringData:\n  a: {PLANTED}\n"},
    ),
    "an asset": ("aws:x:X", {"code": {SIGNATURE: "c44067f5952c0a294b673a41bacd8c17", "text": PLANTED}}),
}


def everything_said(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    report = build(from_text(text))
    show_report(report, frozenset())
    shown = capsys.readouterr()
    return "\n".join(
        [
            markdown([report], most=None),
            json.dumps(document(report), ensure_ascii=False),
            json.dumps(sarif([report]), ensure_ascii=False),
            shown.out,
            shown.err,
        ]
    )


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("form", [lines, digest])
def test_a_secret_is_in_no_report(place: str, form: Any, capsys: pytest.CaptureFixture[str]) -> None:
    kind, inputs = PLACES[place]
    events = [
        step("create", kind, "created", new=inputs),
        step("update", kind, "updated", old={"a": 1}, new=inputs, diffs=list(inputs)),
        step("update", kind, "both", old=inputs, new={**inputs, "n": 2}, diffs=[*inputs, "n"]),
        step("replace", kind, "replaced", old=inputs, new={"a": 2}, keys=list(inputs), of_old={"outputs": inputs}),
        step("delete", kind, "deleted", old=inputs),
        summary(),
    ]
    told = everything_said(form(events), capsys)
    assert "PLANTED" not in told
    assert ENCODED not in told


@pytest.mark.parametrize(
    "message",
    [
        f"connection to postgres://user:{PLANTED}@db failed",
        f"invalid value: password={PLANTED}",
        f"refused: Authorization: Basic {PLANTED}",
        f"the key is {PEM}".replace("PLANTED", PLANTED),
        f"{JWT} has expired",
    ],
)
def test_a_secret_in_a_message_is_in_no_report(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    events = [said(message), said(message, "warning"), broken_rule("some-rule", message=message), summary("failed")]
    assert "PLANTED" not in everything_said(lines(events), capsys)


def test_a_secret_that_changes_is_seen_to_change() -> None:
    old, new = ({"secret": {SIGNATURE: SECRET_SIGNATURE, "ciphertext": text}} for text in ("a", "b"))
    events = [step("update", old=old, new=new, diffs=["secret"]), summary()]
    (change,) = build(from_text(lines(events))).changes
    assert [(one.path, one.old, one.new) for one in change.fields] == [("secret", SECRET, SECRET)]


READABLE = {
    "httpTokens": "required",
    "automountServiceAccountToken": False,
    "secretName": "tls",
    "imagePullSecrets": [{"name": "registry"}],
    "tokenExpirationSeconds": 3600,
    "valueFrom": {"secretKeyRef": {"name": "db", "key": "password"}},
    "keyName": "ssh",
    "kmsKeyId": "alias/trainyard",
    "passThrough": "yes",
    "args": ["--token-ttl=3600s", "--v=2"],
}


@pytest.mark.parametrize("name", ["httpTokens", "automountServiceAccountToken", "secretName", "keyName", "kmsKeyId"])
def test_what_only_sounds_like_a_secret_stays(name: str) -> None:
    assert scrub({name: READABLE[name]}) == {name: READABLE[name]}


def test_references_to_secrets_stay() -> None:
    for name in ("valueFrom", "imagePullSecrets", "passThrough"):
        assert scrub({name: READABLE[name]}) == {name: READABLE[name]}


def test_what_is_not_known_yet_is_not_taken_for_a_secret() -> None:
    assert scrub({"password": UNKNOWN_TEXT})["password"] is UNKNOWN
    assert scrub([UNKNOWN_TEXT, {SIGNATURE: "d0e6a833031e9bbcd3f4e8bde6ca49a4"}]) == [UNKNOWN, UNKNOWN]


def test_data_as_deep_as_one_likes_is_no_mistake() -> None:
    deep: Any = PLANTED
    for _ in range(500):
        deep = {"a": [deep]}
    assert "PLANTED" not in json.dumps(scrub(deep))


@pytest.mark.parametrize(
    "part", ["-password", "-", "eyJ", "login ", "login password ", 'password="', "secret\n", "\n", "://", "?sig", " "]
)
def test_texts_that_are_made_to_take_long_come_to_an_end(part: str) -> None:
    scrub({"a": f"secret login password {part * 20_000}x://", part * 20_000: 1})  # hours, if its square were taken


def test_what_only_names_a_secret_stays_readable() -> None:
    kept = {
        "volumes": [{"name": "a", "secret": {"secretName": "tls", "defaultMode": 256}}],
        "env": [{"valueFrom": {"secretKeyRef": {"name": "wandb", "key": "api", "optional": True}}}],
        "tokenRequests": [{"audience": "sts.amazonaws.com", "expirationSeconds": 3600}],
        "auth": {"mode": "iam"},
    }
    assert scrub(kept) == kept
