"""Certificates, kubeconfigs and settings of the test bed's cluster."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path


def certificates(folder: Path, api_address: str, node: str) -> None:
    """An authority of our own, and what it vouches for: for as long as a test session lasts."""
    _openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/ca.key", "-out", f"{folder}/ca.crt",
             "-days", "2", "-subj", "/CN=test-ca")  # fmt: skip
    api = f"IP:127.0.0.1,IP:{api_address},DNS:localhost,DNS:kubernetes,DNS:kubernetes.default.svc"
    _certificate(folder, "apiserver", "/CN=kube-apiserver", api)
    _certificate(folder, "admin", "/O=system:masters/CN=admin", "")
    _certificate(folder, "node", f"/O=system:nodes/CN=system:node:{node}", f"IP:127.0.0.1,DNS:{node}")
    _openssl("genrsa", "-out", f"{folder}/sa.key", "2048")
    _openssl("rsa", "-in", f"{folder}/sa.key", "-pubout", "-out", f"{folder}/sa.pub")


def kubeconfigs(folder: Path, server: str) -> None:
    for file, user in (("kubeconfig", "admin"), ("node.kubeconfig", "node")):
        (folder / file).write_text(json.dumps(_kubeconfig(folder / "pki", server, user)))


def apiserver(pki: Path, etcd: str, port: int) -> list[str]:
    return [
        f"--etcd-servers={etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        f"--secure-port={port}",
        "--feature-gates=TTLAfterFinished=true",
        "--endpoint-reconciler-type=none",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--client-ca-file={pki}/ca.crt",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--authorization-mode=RBAC,Node",
        "--service-cluster-ip-range=10.96.0.0/16",
        "--allow-privileged=true",
        f"--kubelet-client-certificate={pki}/admin.crt",
        f"--kubelet-client-key={pki}/admin.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=Hostname",
    ]


def controller_manager(folder: Path) -> list[str]:
    pki = folder / "pki"
    return [
        f"--kubeconfig={folder}/kubeconfig",
        "--bind-address=127.0.0.1",
        "--port=0",
        "--leader-elect=false",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--feature-gates=TTLAfterFinished=true",
        "--allocate-node-cidrs=false",
        "--cluster-cidr=10.244.0.0/16",
    ]


def node_files(folder: Path, gateway: str) -> None:
    addresses = {"type": "host-local", "ranges": [[{"subnet": "10.244.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}],
                 "dataDir": f"{folder}/cni/data"}  # fmt: skip
    bridge = {"type": "bridge", "bridge": "k8sbr0", "isGateway": True, "ipMasq": False, "hairpinMode": True,
              "ipam": addresses}  # fmt: skip
    network = {"cniVersion": "0.4.0", "name": "k8sbr", "plugins": [bridge, {"type": "loopback"}]}
    (folder / "cni/net.d/10-br.conflist").write_text(json.dumps(network))
    (folder / "containerd/config.toml").write_text(_CONTAINERD.format(folder=folder))
    (folder / "kubelet.yaml").write_text(json.dumps(_kubelet(folder / "pki", gateway)))


def _kubelet(pki: Path, gateway: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": "127.0.0.1",
        "port": 20250,
        "healthzPort": 20248,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "x509": {"clientCAFile": f"{pki}/ca.crt"},
            "webhook": {"enabled": True},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{pki}/node.crt",
        "tlsPrivateKeyFile": f"{pki}/node.key",
        "cgroupDriver": "cgroupfs",
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "clusterDNS": [gateway],
        "clusterDomain": "cluster.local",
        "evictionHard": {"imagefs.available": "1%", "nodefs.available": "1%", "memory.available": "100Mi"},
        "imageGCHighThresholdPercent": 100,
        "syncFrequency": "5s",
        "maxPods": 60,
    }


def _kubeconfig(pki: Path, server: str, user: str) -> dict[str, object]:
    def encoded(name: str) -> str:
        return base64.b64encode((pki / name).read_bytes()).decode()

    keys = {"client-certificate-data": encoded(f"{user}.crt"), "client-key-data": encoded(f"{user}.key")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "bed", "cluster": {"server": server, "certificate-authority-data": encoded("ca.crt")}}],
        "users": [{"name": user, "user": keys}],
        "contexts": [{"name": "bed", "context": {"cluster": "bed", "user": user, "namespace": "default"}}],
        "current-context": "bed",
    }


def _certificate(folder: Path, name: str, subject: str, names: str) -> None:
    extensions = folder / f"{name}.ext"
    extensions.write_text("extendedKeyUsage=serverAuth,clientAuth\n" + (f"subjectAltName={names}\n" if names else ""))
    _openssl("req", "-newkey", "rsa:2048", "-nodes", "-keyout", f"{folder}/{name}.key", "-subj", subject,
             "-out", f"{folder}/{name}.csr")  # fmt: skip
    _openssl("x509", "-req", "-in", f"{folder}/{name}.csr", "-CA", f"{folder}/ca.crt", "-CAkey", f"{folder}/ca.key",
             "-CAcreateserial", "-days", "2", "-out", f"{folder}/{name}.crt", "-extfile", str(extensions))  # fmt: skip


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


_CONTAINERD = """version = 2
root = "{folder}/containerd/root"
state = "{folder}/containerd/state"
[grpc]
  address = "{folder}/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "docker.io/local/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni/net.d"
"""
