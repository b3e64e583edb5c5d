"""Rules for ranks that cannot reach each other, or time out waiting for each other."""

from __future__ import annotations

from headway.diagnose.matching import FailureRule, Retry

RULES = (
    FailureRule(
        name="peers-missing",
        pattern=r"(?P<who>nodes? [\d, ]+of \d+) (?:never came|did not join)"
        r"|DistStoreError: Timed out after .* waiting for clients"
        r"|Timed out after \d+ seconds waiting for clients|waiting for clients\. \d+/\d+ clients joined",
        cause="not all nodes joined: one could not start, or cannot reach node 0",
        fix="headway logs {run} --rank 1; check that the nodes can reach each other's ports",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="nccl-timeout",
        pattern=r"Watchdog caught collective operation timeout|collective operation timeout: WorkNCCL",
        cause="a collective operation timed out: another rank is stuck, slow or gone",
        fix="headway logs {run}   (the rank without output is the cause); headway resume {run} ({again})",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="nccl-error",
        pattern=r"ncclSystemError|ncclInternalError|ncclUnhandledCudaError|ncclRemoteError|NCCL error",
        cause="NCCL cannot communicate between these accelerators or machines",
        fix="headway run --env NCCL_DEBUG=INFO; with several network interfaces --env NCCL_SOCKET_IFNAME=eth0",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="gloo-timeout",
        pattern=r"gloo/transport/tcp/(?:pair|unbound_buffer|context)\.cc.*(?:Timed out|timeout)"
        r"|Gloo connectFullMesh failed"
        r"|\[\.\./third_party/gloo.*Timed out waiting",
        cause="a gloo operation timed out: another rank is stuck, slow or gone",
        fix="headway logs {run}   (the rank without output is the cause); headway resume {run} ({again})",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="gloo-peer-gone",
        pattern=r"gloo.*(?:Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused)",
        cause="another rank exited during a reduction: it failed first",
        fix="headway why {run} --rank …, or headway logs {run}: the first rank that failed is the cause",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="port-taken",
        pattern=r"(?:EADDRINUSE|Address already in use|address already in use)",
        cause="the port is in use by another process",
        fix="leave out --env MASTER_PORT, or stop the process that uses the port (ss -ltnp)",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="rate-limited",
        pattern=r"429 Too Many Requests|HTTP Error 429|Too Many Requests for url|429 Client Error|rateLimitExceeded"
        r"|RateLimitError|TooManyRequestsException|ThrottlingException|An error occurred \(SlowDown\)"
        r"|error code:? 429|RESOURCE_EXHAUSTED.*(?:rate|per minute)",
        cause="a service refuses requests because there were too many in a short time",
        fix="headway resume {run}   ({again}); fewer loader workers or ranks ask less often",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="name-not-resolved",
        pattern=r"Temporary failure in name resolution|Name or service not known|getaddrinfo failed|no such host"
        r"|Could not resolve host:? ?(?P<host>[\w.-]*)",
        cause="a host name could not be resolved on the training machine",
        fix="the machine has no internet access or no DNS: put data and weights into the bucket or the image",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="certificate",
        pattern=r"CERTIFICATE_VERIFY_FAILED|certificate verify failed"
        r"|x509: certificate (?:signed by unknown authority|has expired)",
        cause="the training machine does not trust a server's certificate",
        fix="install the authority's certificate in the image: --env REQUESTS_CA_BUNDLE=… SSL_CERT_FILE=…",
    ),
    FailureRule(
        name="ranks-differ",
        pattern=r"DDP expects same model across all ranks|Detected mismatch between collectives on ranks"
        r"|parameters? .* (?:sizes|shape) .* across processes",
        cause="the ranks differ: one of them has another model, data or code path",
        fix="use run.first only around printing; every rank must run every step",
    ),
    FailureRule(
        name="unused-parameters",
        pattern=r"Expected to have finished reduction in the prior iteration",
        cause="some parameters were not used in the loss on some rank",
        fix="use run.place(model) instead of DistributedDataParallel: it allows unused parameters",
    ),
)
