"""Ranks that cannot reach or do not wait for each other."""

from __future__ import annotations

from headway.diagnose.diagnosis import FailureRule

KNOWN = (
    FailureRule(
        name="peers-missing",
        pattern=r"(?P<who>nodes? [\d, ]+of \d+) never came|DistStoreError: Timed out after .* waiting for clients"
        r"|Timed out after \d+ seconds waiting for clients|waiting for clients\. \d+/\d+ clients joined",
        cause="not every node of the run came: one could not start, or cannot reach node 0",
        fix="headway logs {run} --rank 1; and whether the nodes reach each other's ports",
    ),
    FailureRule(
        name="nccl-timeout",
        pattern=r"Watchdog caught collective operation timeout|collective operation timeout: WorkNCCL",
        cause="a rank waited in vain for the others: one of them is stuck, slow or gone",
        fix="headway logs {run}   (the rank that is silent is the cause); headway resume {run} ({again})",
    ),
    FailureRule(
        name="nccl-error",
        pattern=r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclRemoteError|NCCL error",
        cause="NCCL cannot work between these accelerators or machines",
        fix="headway run --env NCCL_DEBUG=INFO; on several networks --env NCCL_SOCKET_IFNAME=eth0",
    ),
    FailureRule(
        name="gloo-timeout",
        pattern=r"gloo/transport/tcp/(?:pair|unbound_buffer|context)\.cc.*(?:Timed out|timeout)"
        r"|Gloo connectFullMesh failed"
        r"|\[\.\./third_party/gloo.*Timed out waiting",
        cause="a rank waited in vain for the others (gloo): one of them is stuck, slow or gone",
        fix="headway logs {run}   (the rank that is silent is the cause); headway resume {run} ({again})",
    ),
    FailureRule(
        name="gloo-peer-gone",
        pattern=r"gloo.*(?:Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused)",
        cause="another rank went away in the middle of a reduction: it failed first",
        fix="headway why {run} --rank …, or headway logs {run}: the first rank that failed is the cause",
    ),
    FailureRule(
        name="port-taken",
        pattern=r"(?:EADDRINUSE|Address already in use|address already in use)",
        cause="the port is taken by another process",
        fix="--env MASTER_PORT is not needed: leave it out; else end what holds it (ss -ltnp)",
    ),
    FailureRule(
        name="name-not-resolved",
        pattern=r"Temporary failure in name resolution|Name or service not known|getaddrinfo failed|no such host"
        r"|Could not resolve host:? ?(?P<host>[\w.-]*)",
        cause="a host's name cannot be resolved from where it trains",
        fix="the place has no way out to the internet, or no DNS: put data and weights into the bucket or the image",
    ),
    FailureRule(
        name="certificate",
        pattern=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"
        r"|x509: certificate (?:signed by unknown authority|has expired)",
        cause="a server's certificate is not trusted there",
        fix="install the authority's certificate in the image: --env REQUESTS_CA_BUNDLE=… SSL_CERT_FILE=…",
    ),
    FailureRule(
        name="ranks-differ",
        pattern=r"DDP expects same model across all ranks|Detected mismatch between collectives on ranks"
        r"|parameters? .* (?:sizes|shape) .* across processes",
        cause="the ranks do not do the same: another model, data or code path on one of them",
        fix="branch on run.first only around printing; every rank must take every step",
    ),
    FailureRule(
        name="unused-parameters",
        pattern=r"Expected to have finished reduction in the prior iteration",
        cause="part of the model took no part in the loss on some rank",
        fix="use run.place(model) instead of DistributedDataParallel: it does not mind",
    ),
)
