"""Cluster address and credentials, from a kubeconfig context or from the service account of the current pod."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import quote

from headway.core.errors import BadInput, HeadwayError, TargetError

SERVICE_ACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")
IN_POD = "this pod"  # stands for a context where there is no kubeconfig
PLUGIN_TIMEOUT_S = 120.0  # a credential plugin may open a browser


@dataclass(frozen=True, kw_only=True, slots=True)
class Access:
    """Address and credentials of one cluster. Its repr never contains the token."""

    server: str
    context: str = ""
    ca: bytes | None = None
    insecure: bool = False
    server_name: str | None = None
    proxy: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    token: str | None = None
    token_file: Path | None = None
    plugin: Mapping[str, Any] | None = None
    namespace: str = ""  # the context's own; empty if it names none
    impersonate: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)  # headers: whose rights apply

    def __repr__(self) -> str:
        return f"Access(server={self.server!r}, context={self.context!r})"


def load(context: str | None = None, *, fix: str = "") -> Access:
    """Load the named context or the current one; in a pod without a kubeconfig, the pod's service account."""
    merged = _merge_files(_kubeconfig_paths())
    if not merged["contexts"] and not os.environ.get("KUBECONFIG") and "KUBERNETES_SERVICE_HOST" in os.environ:
        return in_pod()
    name = context or merged["current-context"]
    if not merged["contexts"]:
        raise BadInput(
            "there is no kubeconfig, so no cluster is known here", where=str(_kubeconfig_paths()[0]), fix=fix
        )
    if not name or name not in merged["contexts"]:
        known = ", ".join(sorted(merged["contexts"]))
        what = f"the kubeconfig has no context {name!r}" if name else "the kubeconfig has no current context"
        raise BadInput(what, where=str(_kubeconfig_paths()[0]), fix=f"context: one of {known}" if known else fix)
    context_entry = merged["contexts"][name]
    cluster = merged["clusters"].get(context_entry.get("cluster", ""))
    if cluster is None or not cluster.get("server"):
        raise BadInput(f"the context {name!r} names a cluster that the kubeconfig does not have", fix=fix)
    user = merged["users"].get(context_entry.get("user", ""), {})
    return Access(
        server=str(cluster["server"]).rstrip("/"),
        context=str(name),
        ca=_read_bytes(cluster, "certificate-authority"),
        insecure=bool(cluster.get("insecure-skip-tls-verify")),
        server_name=cluster.get("tls-server-name"),
        proxy=cluster.get("proxy-url"),
        certificate=_read_bytes(user, "client-certificate"),
        key=_read_bytes(user, "client-key"),
        token=user.get("token"),
        token_file=Path(user["_folder"], user["tokenFile"]) if user.get("tokenFile") else None,
        plugin=user.get("exec"),
        namespace=str(context_entry.get("namespace") or ""),
        impersonate=_impersonation(user),
    )


def configured_options(options: Mapping[str, Any]) -> dict[str, str]:
    """Return the context and its namespace, as kubectl would use them, unless the target names them. No request."""
    try:
        access = load(options.get("context"))
    except HeadwayError:  # there is no kubeconfig, or it is damaged: whoever connects reports it
        return {}
    found = {"context": access.context, "namespace": access.namespace}
    if access.context == IN_POD:
        del found["context"]
    return {key: value for key, value in found.items() if value and key not in options}


# A run is looked for in the cluster in which it was started, whatever the current context is by then.


class AnotherCluster(TargetError):
    """The kubeconfig leads to another cluster than the run's."""


def place_of(access: Access) -> dict[str, str]:
    """Return what a run's record keeps of its cluster: context, address, and its CA's fingerprint."""
    ca = hashlib.sha256(access.ca).hexdigest()[:16] if access.ca else ""
    place = {"context": access.context, "server": access.server, "ca": ca}
    return {key: value for key, value in place.items() if value}


def load_recorded(place: Mapping[str, Any], context: str | None = None, *, fix: str = "") -> Access:
    """Load the access to the cluster of a record, by whatever context leads there; the recorded one first.

    A cluster is the same if its address is, or if it kept its CA under the context's name. Raises AnotherCluster.
    """
    server, recorded = str(place.get("server", "")), str(place.get("context", ""))
    if not server:  # recorded by an earlier version
        return load(context, fix=fix)
    names = dict.fromkeys([*(name for name in (recorded, context) if name != IN_POD), None, *_contexts()])
    found = [access for access in map(_try_load, names) if access is not None]
    same = [access for access in found if access.server == server]
    if not same and place.get("ca"):
        named = [each for each in found if each.context == recorded or IN_POD in (each.context, recorded)]
        same = [access for access in named if place_of(access).get("ca") == place["ca"]]
    if same:
        return same[0]
    others = ", ".join(sorted({f"{access.context} ({access.server})" for access in found})) or "none"
    raise AnotherCluster(
        f"it was started in the cluster at {server} (context {recorded}), which this kubeconfig does not name",
        where=f"known here: {others}",
        fix=fix,
    )


def _try_load(context: str | None) -> Access | None:
    try:
        return load(context)
    except HeadwayError:
        return None


def _contexts() -> list[str]:
    return sorted(_merge_files(_kubeconfig_paths())["contexts"])


def _impersonation(user: Mapping[str, Any]) -> dict[str, str | tuple[str, ...]]:
    """Return the headers for `as`, `as-uid`, `as-groups` and `as-user-extra` of a kubeconfig's user."""
    extra = user.get("as-user-extra") or {}
    if not user.get("as"):
        if user.get("as-uid") or user.get("as-groups") or extra:
            raise BadInput("the kubeconfig's user has as-uid, as-groups or as-user-extra without `as`", fix="add `as:`")
        return {}
    headers: dict[str, str | tuple[str, ...]] = {"Impersonate-User": str(user["as"])}
    if user.get("as-uid"):
        headers["Impersonate-Uid"] = str(user["as-uid"])
    if user.get("as-groups"):
        headers["Impersonate-Group"] = tuple(map(str, user["as-groups"]))
    named = {f"Impersonate-Extra-{quote(str(key), safe='')}": tuple(map(str, values)) for key, values in extra.items()}
    return {**headers, **named}


def in_pod() -> Access:
    """Return the access of the service account whose token is mounted in this pod."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    host = f"[{host}]" if ":" in host else host
    try:
        ca = (SERVICE_ACCOUNT_DIR / "ca.crt").read_bytes()
    except OSError as error:
        raise TargetError(
            f"this pod has no service account's token: {error.strerror}", where=str(SERVICE_ACCOUNT_DIR)
        ) from None
    try:
        namespace = (SERVICE_ACCOUNT_DIR / "namespace").read_text().strip()
    except OSError:
        namespace = ""
    token = SERVICE_ACCOUNT_DIR / "token"
    return Access(server=f"https://{host}:{port}", context=IN_POD, ca=ca, token_file=token, namespace=namespace)


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential returned by an exec plugin."""

    token: str | None
    certificate: bytes | None
    key: bytes | None
    expires: float | None  # Unix seconds

    def __repr__(self) -> str:
        return f"Credential(expires={self.expires})"


def run_exec_plugin(plugin: Mapping[str, Any], server: str) -> Credential:
    """Run the exec credential plugin that a kubeconfig names, such as gke-gcloud-auth-plugin."""
    command, api = str(plugin["command"]), str(plugin.get("apiVersion", "client.authentication.k8s.io/v1"))
    exec_info = {"apiVersion": api, "kind": "ExecCredential", "spec": {"interactive": False}}
    if plugin.get("provideClusterInfo"):
        exec_info["spec"] = {"interactive": False, "cluster": {"server": server}}
    extra = {str(pair["name"]): str(pair["value"]) for pair in plugin.get("env") or ()}
    env = {**os.environ, **extra, "KUBERNETES_EXEC_INFO": json.dumps(exec_info)}
    try:
        process = subprocess.run(
            [command, *map(str, plugin.get("args") or ())],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PLUGIN_TIMEOUT_S,
        )  # fmt: skip
    except FileNotFoundError:
        hint = str(plugin.get("installHint") or "").strip().replace("\n", " ")
        fix = "gcloud components install gke-gcloud-auth-plugin" if "gke-gcloud" in command else hint
        raise TargetError(f"the kubeconfig wants {command}, which is not installed", fix=fix) from None
    except subprocess.TimeoutExpired:
        raise TargetError(
            f"{command} has not answered for {PLUGIN_TIMEOUT_S:.0f} s", fix=f"run {command} by hand"
        ) from None
    if process.returncode:
        message = (process.stderr.strip().splitlines() or ["it gave no reason"])[-1][:300]
        fix = "gcloud auth login" if "gke-gcloud" in command else ""
        raise TargetError(f"{command} returned no credential: {message}", fix=fix)
    return _parse_credential(command, process.stdout)


def _parse_credential(command: str, printed: str) -> Credential:
    try:
        status = json.loads(printed)["status"]
        expiry = status.get("expirationTimestamp")
        # Go may print nanoseconds, which Python 3.10 cannot parse.
        plain = re.sub(r"\.\d+", "", str(expiry)).replace("Z", "+00:00")
        expires = datetime.fromisoformat(plain) if expiry else None
    except (ValueError, KeyError, TypeError, AttributeError):
        # Do not show what it printed: that may contain part of a token.
        raise TargetError(f"what {command} printed is not an ExecCredential") from None
    if expires is not None and expires.tzinfo is None:
        expires = expires.replace(tzinfo=timezone.utc)
    encode = {name: status.get(name) for name in ("clientCertificateData", "clientKeyData")}
    return Credential(
        token=status.get("token"),
        certificate=encode["clientCertificateData"].encode() if encode["clientCertificateData"] else None,
        key=encode["clientKeyData"].encode() if encode["clientKeyData"] else None,
        expires=expires.timestamp() if expires else None,
    )


def _kubeconfig_paths() -> list[Path]:
    listed = os.environ.get("KUBECONFIG", "")
    return [Path(part).expanduser() for part in listed.split(os.pathsep) if part] or [
        Path("~/.kube/config").expanduser()
    ]


def _merge_files(paths: list[Path]) -> dict[str, Any]:
    """Merge several kubeconfig files as kubectl does: the first definition of a name wins."""
    import yaml

    merged: dict[str, Any] = {"contexts": {}, "clusters": {}, "users": {}, "current-context": ""}
    for path in paths:
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"the kubeconfig cannot be read: {error}", where=str(path)) from None
        try:
            known = yaml.safe_load(text) or {}
            for plural, single in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
                for entry in known.get(plural) or ():
                    # Paths in the file are relative to it.
                    value = {**(entry.get(single) or {}), "_folder": str(path.parent)}
                    merged[plural].setdefault(entry["name"], value)
        except (yaml.YAMLError, KeyError, TypeError, AttributeError):
            raise BadInput("this is not a kubeconfig", where=str(path), fix="kubectl config view") from None
        merged["current-context"] = merged["current-context"] or known.get("current-context") or ""
    return merged


def _read_bytes(entry: Mapping[str, Any], key: str) -> bytes | None:
    """Read a certificate or key, inline in base64 or from a file."""
    if entry.get(f"{key}-data"):
        return base64.b64decode(entry[f"{key}-data"])
    if not entry.get(key):
        return None
    path = Path(entry["_folder"], entry[key])
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadInput(f"the kubeconfig's {key} cannot be read: {error.strerror}", where=str(path)) from None
