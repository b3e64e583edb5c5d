"""Rules for full memory and full disks."""

from __future__ import annotations

from headway.diagnose.matching import FailureRule, Retry

_LESS = "headway run --set accumulate=2   (the same training in half the memory; 4, 8, … if needed)"

RULES = (
    FailureRule(
        name="cuda-out-of-memory",
        pattern=r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError|CUDA error: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED",
        cause="the accelerator ran out of memory",
        fix=_LESS,
        retry=Retry.SMALLER,
    ),
    FailureRule(
        name="shared-memory",
        pattern=r"bus error|SIGBUS|unable to (?:open|mmap|write).*shared memory|insufficient shared memory \(shm\)",
        cause="the shared memory that data loader workers use is full",
        fix="raise `shm` of the target (docker, kubernetes), or --set config.workers=0",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="evicted-for-memory",
        pattern=r"node was low on resource: memory|MemoryPressure",
        cause="the node ran out of memory and evicted the pod",
        fix="request more: --set resources.memory=30GB",
        retry=Retry.SMALLER,
    ),
    FailureRule(
        name="evicted-for-disk",
        pattern=r"node was low on resource: ephemeral-storage|DiskPressure|exceeds its local storage limit"
        r"|ephemeral local storage usage exceeds",
        cause="the node's disk was full, and the pod was evicted",
        fix="request more: --set resources.disk=100GB, and lower cache.size",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="evicted",
        pattern=r"\bEvicted\b|pod was evicted|TaintManagerEviction",
        cause="the cluster evicted the pod, to make room or to drain the node",
        fix="headway resume {run}   ({again})",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="host-out-of-memory",
        pattern=r"OOMKilled|ran out-of-memory and exited"
        r"|Out of memory: Killed process|oom-kill|oom_kill|DefaultCPUAllocator: (?:can't|not enough)"
        r"|Cannot allocate memory|\bMemoryError\b|was killed \(SIGKILL\)|exited with (?:code )?137|exit code:? ?137"
        r"|DataLoader worker .* is killed by signal: Killed|Detected \d+ oom.kill event",
        cause="the machine ran out of memory, and the kernel killed the process (exit 137)",
        fix="--set resources.memory=60GB, or --set config.workers=0 accumulate=2",
        retry=Retry.SMALLER,
    ),
    FailureRule(
        name="disk-quota",
        pattern=r"Disk quota exceeded|EDQUOT",
        cause="your disk quota is used up",
        fix="quota -s; then choose another folder: --set outputs=…",
    ),
    FailureRule(
        name="disk-full",
        pattern=r"No space left on device|ENOSPC|no space left",
        cause="the disk is full",
        fix="df -h; then --set resources.disk=200GB, fewer checkpoints (checkpoint.keep_last), or a smaller cache.size",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="too-many-files",
        pattern=r"Too many open files|EMFILE|received 0 items of ancdata",
        cause="the process has reached its limit of open files",
        fix="ulimit -n 65536 before headway run, or --set config.workers=2",
        retry=Retry.RETRY,
    ),
)
