"""What Vertex AI refuses of a custom job, as its documentation says it. Apart from Headway's own tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Typed apart from Headway's own table, which catches slips of the pen. Neither has been held against Google's service.
CPUS = frozenset(
    f"{family}-{size}"
    for family, sizes in {
        "n1-standard": (4, 8, 16, 32, 64, 96),
        "n1-highmem": (2, 4, 8, 16, 32, 64, 96),
        "n1-highcpu": (16, 32, 64, 96),
        "e2-standard": (4, 8, 16, 32),
        "c2-standard": (4, 8, 16, 30, 60),
    }.items()
    for size in sizes
)
BUILT_IN = {
    "g2-standard-4": ("NVIDIA_L4", 1),
    "g2-standard-8": ("NVIDIA_L4", 1),
    "g2-standard-12": ("NVIDIA_L4", 1),
    "g2-standard-16": ("NVIDIA_L4", 1),
    "g2-standard-24": ("NVIDIA_L4", 2),
    "g2-standard-32": ("NVIDIA_L4", 1),
    "g2-standard-48": ("NVIDIA_L4", 4),
    "g2-standard-96": ("NVIDIA_L4", 8),
    "a2-highgpu-1g": ("NVIDIA_TESLA_A100", 1),
    "a2-highgpu-2g": ("NVIDIA_TESLA_A100", 2),
    "a2-highgpu-4g": ("NVIDIA_TESLA_A100", 4),
    "a2-highgpu-8g": ("NVIDIA_TESLA_A100", 8),
    "a2-ultragpu-1g": ("NVIDIA_A100_80GB", 1),
    "a3-highgpu-8g": ("NVIDIA_H100_80GB", 8),
}
ATTACHED = {
    "NVIDIA_TESLA_T4": {4: (1, 2, 4), 8: (1, 2, 4), 16: (1, 2, 4), 32: (2, 4), 64: (4,), 96: (4,)},
    "NVIDIA_TESLA_V100": {4: (1, 2, 4, 8), 8: (1, 2, 4, 8), 16: (2, 4, 8), 32: (4, 8), 64: (8,), 96: (8,)},
    "NVIDIA_TESLA_P100": {4: (1, 2, 4), 8: (1, 2, 4), 16: (1, 2, 4), 32: (2, 4)},
}
_LABEL = re.compile(r"[\w-]{1,63}")
_VALUE = re.compile(r"[\w-]{0,63}")


def faults(job: Mapping[str, Any]) -> Iterator[str]:
    """Each with the words that the API has for it."""
    if not job.get("displayName") or len(job["displayName"]) > 128:
        yield "display_name must be 1 to 128 characters."
    yield from _label_faults(job.get("labels", {}))
    spec = job.get("jobSpec", {})
    pools = spec.get("workerPoolSpecs", [])
    if not pools or len(pools) > 4:
        yield "job_spec.worker_pool_specs must have 1 to 4 elements."
        return
    if int(pools[0].get("replicaCount", 0)) != 1:
        yield "job_spec.worker_pool_specs[0].replica_count must be 1: it is the primary replica."
    for number, pool in enumerate(pools):
        yield from (f"job_spec.worker_pool_specs[{number}].{fault}" for fault in _pool_faults(pool))
    yield from _job_faults(spec)


def _label_faults(labels: Mapping[str, str]) -> Iterator[str]:
    if len(labels) > 64:
        yield "No more than 64 user labels can be associated with one resource."
    for name, value in labels.items():
        good = _LABEL.fullmatch(name) and _VALUE.fullmatch(value) and name == name.lower() and value == value.lower()
        if not good or not name[0].isalpha():
            yield f"Label {name!r}: {value!r} is invalid."


def _pool_faults(pool: Mapping[str, Any]) -> Iterator[str]:
    programs = [name for name in ("containerSpec", "pythonPackageSpec") if name in pool]
    if len(programs) != 1:
        yield "task must be one of container_spec and python_package_spec."
        return
    program = pool[programs[0]]
    if programs[0] == "containerSpec" and not program.get("imageUri"):
        yield "container_spec.image_uri is required."
    if programs[0] == "pythonPackageSpec":
        yield from _package_faults(program)
    if len(" ".join([*program.get("args", []), *program.get("command", [])])) > 100_000:
        yield "the arguments are longer than 100,000 characters."
    if int(pool.get("replicaCount", 0)) < 1:
        yield "replica_count must be at least 1."
    yield from _machine_faults(pool.get("machineSpec", {}))
    disk = pool.get("diskSpec", {})
    if (
        disk.get("bootDiskType", "pd-ssd") not in ("pd-ssd", "pd-standard")
        or not 100 <= disk.get("bootDiskSizeGb", 100) <= 64_000
    ):
        yield "disk_spec is invalid."
    for mount in pool.get("nfsMounts", []):
        if "/" in mount.get("mountPoint", "/") or not mount.get("path", "").startswith("/"):
            yield "nfs_mounts: mount_point must be a name."


def _package_faults(program: Mapping[str, Any]) -> Iterator[str]:
    uris = program.get("packageUris", [])
    if not 1 <= len(uris) <= 100 or not all(uri.startswith("gs://") for uri in uris):
        yield "python_package_spec.package_uris must be 1 to 100 locations in Cloud Storage."
    if not program.get("pythonModule"):
        yield "python_package_spec.python_module is required."
    if not re.match(r"(us|europe|asia)-docker\.pkg\.dev/vertex-ai/training/", program.get("executorImageUri", "")):
        yield "python_package_spec.executor_image_uri must be one of the pre-built containers."


def _machine_faults(machine: Mapping[str, Any]) -> Iterator[str]:
    name, kind = machine.get("machineType", ""), machine.get("acceleratorType", "")
    count = int(machine.get("acceleratorCount", 0))
    if name in BUILT_IN:
        if (kind, count) != BUILT_IN[name]:
            yield f"machine_spec: {name} has {BUILT_IN[name]}."
    elif name not in CPUS:
        yield f'machine_spec.machine_type: Machine type "{name}" is not supported.'
    elif kind:
        size = int(name.rpartition("-")[2])
        if not name.startswith("n1-") or count not in ATTACHED.get(kind, {}).get(size, ()):
            yield f'machine_spec: Accelerator "{kind}" x {count} is not supported on {name}.'


def _job_faults(spec: Mapping[str, Any]) -> Iterator[str]:
    scheduling = spec.get("scheduling", {})
    if "timeout" not in scheduling:
        yield "this test server wants scheduling.timeout: seven days of bills are nobody's wish."
    if "maxWaitDuration" in scheduling and scheduling.get("strategy") != "FLEX_START":
        yield "scheduling.max_wait_duration is for FLEX_START."
    if spec.get("tensorboard") and not spec.get("serviceAccount"):
        yield "job_spec.service_account is required with tensorboard."
    if any(pool.get("nfsMounts") for pool in spec["workerPoolSpecs"]) and not spec.get("network"):
        yield "job_spec.network is required with nfs_mounts."
    base = spec.get("baseOutputDirectory", {}).get("outputUriPrefix", "gs://")
    if not base.startswith("gs://"):
        yield "base_output_directory.output_uri_prefix must be in Cloud Storage."
