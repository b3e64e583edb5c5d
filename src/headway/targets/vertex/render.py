"""Render a plan as the exact JSON of its custom job, one per candidate region. Pure."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headway.core.plan import RUN
from headway.core.program import is_foreign_image
from headway.core.types import OWNER, OWNER_NAME, Request
from headway.packaging import build, dependencies
from headway.packaging.dockerfile import CODE_DIR, SUPERVISOR, AnyImage, image_of_plan
from headway.packaging.requirements import extras
from headway.rundir.status import run_url
from headway.storage import join
from headway.targets.vertex import machines, package
from headway.targets.vertex.boot import SPEC
from headway.targets.vertex.machines import Placement, job_placements
from headway.targets.vertex.options import Options

if TYPE_CHECKING:
    from headway.core.plan import Plan

KIND = "vertex"
API = "https://{region}-aiplatform.googleapis.com/v1"
# Google's labels allow neither dots nor URLs: a hash finds the folder, the job's environment has its URL.
RUN_LABEL, FOLDER_LABEL, EXPIRES_LABEL = "headway_run", "headway_folder", "headway_expires"
OWNER_LABEL, OWNER_NAME_LABEL = "headway_owner", "headway_owner_name"
START_LABEL = "headway_start"  # ID of one submission: shows after a lost response whether the job was created
EXPIRES, START = "{EXPIRES}", "{START}"  # placeholders, filled in at launch
ENDING_S = 600.0  # beyond the budget: last checkpoint, export, pulling the image
SMALLEST_DISK_GB = 100
NFS = "/mnt/nfs/"  # Vertex AI mounts only below it


def requests(plan: Plan, options: Options) -> list[Request]:
    """Return every request of `submit`: the image or the package, then one custom job per candidate region."""
    return [*_image_requests(plan, options), *_package_requests(plan, options), *_job_requests(plan, options)]


def custom_job(plan: Plan, options: Options, placement: Placement) -> dict[str, Any]:
    """Build the body of `customJobs.create`."""
    job: dict[str, Any] = {
        "displayName": RUN,
        "labels": labels(plan, options),
        "jobSpec": _spec(plan, options, placement),
    }
    if options.kms_key:
        job["encryptionSpec"] = {"kmsKeyName": options.kms_key}
    return job


def labels(plan: Plan, options: Options) -> dict[str, str]:
    result = {
        RUN_LABEL: RUN,
        FOLDER_LABEL: folder_label(run_url(str(plan.job["outputs"]), RUN)),
        EXPIRES_LABEL: EXPIRES,
        OWNER_LABEL: OWNER,
        OWNER_NAME_LABEL: OWNER_NAME,
        START_LABEL: START,
    }
    return {**{str(name): str(value) for name, value in options.labels.items()}, **result}


def folder_label(url: str) -> str:
    """Return a label value that identifies the run: a hash of `outputs` and the run's name.

    The name is not hashed, because it is not known when a plan is made.
    """
    outputs, _, run = url.rpartition("/")
    return f"{hashlib.sha256(outputs.encode()).hexdigest()[:12]}-{run}"


def timeout_s(plan: Plan, options: Options) -> float:
    """Return Vertex AI's timeout per submission. It is always set."""
    budget = plan.limits.budget_s
    return options.timeout if budget is None else budget + options.grace + ENDING_S


def url_of(region: str, options: Options) -> str:
    return f"{API.format(region=region)}/projects/{options.project}/locations/{region}/customJobs"


def image_of(plan: Plan, options: Options, placement: Placement) -> str:
    """Return the image that the machines run."""
    if options.mode == "container":
        return build.reference(plan, image_of_plan(plan))
    ready = plan.job.get("image", {}).get("uri")
    return str(ready or package.default_uri(accelerated=placement.accelerator is not None, region=placement.region))


def image_to_build(plan: Plan, options: Options) -> AnyImage | None:
    """Return the image that this machine must still build and push; None if there is none."""
    if options.mode != "container" or plan.job.get("image", {}).get("uri"):
        return None
    image = image_of_plan(plan)
    return None if build.read_push_record(image) else image


def _image_requests(plan: Plan, options: Options) -> list[Request]:
    image = image_to_build(plan, options)
    if image is None:
        return []
    argv = [build.build_command("docker", image), ["docker", "push", image.name]]
    return [
        Request(name="Dockerfile", body={"text": image.dockerfile()}),
        Request(name="image.json", body={"argv": argv}),
    ]


def _package_requests(plan: Plan, options: Options) -> list[Request]:
    if options.mode != "package":
        return []
    outputs = str(plan.job["outputs"])
    body = {
        "to": join(outputs, f"code/{package.file_name(plan)}"),
        "holds": {"code": f"{plan.code.sha256} (sha256 of the tar)", "module": package.MODULE},
        "beside": join(outputs, f"code/{plan.code.wheel}"),
    }
    return [Request(name="package.json", body=body)]


def _job_requests(plan: Plan, options: Options) -> list[Request]:
    made, outputs = [], str(plan.job["outputs"])
    for number, placement in enumerate(job_placements(plan.job, options), start=1):
        mark = "" if number == 1 else f"-{number}"
        body = custom_job(plan, options, placement)
        sent = {"method": "POST", "url": url_of(placement.region, options), "body": body}
        made.append(Request(name=f"custom-job{mark}.json", body=sent))
        made.append(
            Request(name=f"job-spec{mark}.yaml", body={"text": _gcloud_config(body, options, placement, mark, outputs)})
        )
    return made


def _gcloud_config(body: Mapping[str, Any], options: Options, placement: Placement, mark: str, outputs: str) -> str:
    """Return the job spec as a file for `gcloud ai custom-jobs create --config`. JSON is valid YAML.

    `plan --render` writes the name of the next run in place of `{RUN}`.
    """
    launch_time = (EXPIRES, START, OWNER, OWNER_NAME)  # `headway run` adds these labels
    pairs = ",".join(f"{name}={value}" for name, value in body["labels"].items() if value not in launch_time)
    key = f" --kms-key={options.kms_key}" if options.kms_key else ""
    about = [
        f"# {placement}. The same as custom-job{mark}.json, for gcloud:",
        f"# gcloud ai custom-jobs create --project={options.project} --region={placement.region} \\",
        f"#   --display-name={body['displayName']} --labels={pairs}{key} --config=job-spec{mark}.yaml",
        f"# The job reads its plan and code from {run_url(outputs, RUN)} and {outputs}/code: `headway run` writes both",
        "# and then creates this job. Created by gcloud alone, it ends with the message that the plan is missing.",
    ]
    return "\n".join([*about, json.dumps(body["jobSpec"], indent=2, ensure_ascii=False, sort_keys=True)]) + "\n"


def _spec(plan: Plan, options: Options, placement: Placement) -> dict[str, Any]:
    url = run_url(str(plan.job["outputs"]), RUN)
    spec: dict[str, Any] = {
        "workerPoolSpecs": _pools(plan, options, placement),
        "scheduling": _scheduling(plan, options, placement),
        "baseOutputDirectory": {"outputUriPrefix": f"{url}/vertex"},
    }
    said = {
        "serviceAccount": options.service_account,
        "network": options.network,
        "tensorboard": options.tensorboard,
        "enableWebAccess": options.web_access,
    }
    return {**spec, **{name: value for name, value in said.items() if value}}


def _scheduling(plan: Plan, options: Options, placement: Placement) -> dict[str, Any]:
    """Build the scheduling section, with retries: a preempted machine is replaced and resumes from the last checkpoint.

    One worker's restart does not restart the whole job: the supervisors repeat their rendezvous.
    """
    strategy = "SPOT" if placement.spot else "FLEX_START" if options.strategy == "flex-start" else "STANDARD"
    found: dict[str, Any] = {
        "timeout": f"{math.ceil(timeout_s(plan, options))}s",
        "strategy": strategy,
        "restartJobOnWorkerRestart": False,
        "disableRetries": False,
    }
    if strategy == "FLEX_START" and plan.limits.max_wait_s is not None:
        found["maxWaitDuration"] = f"{math.ceil(plan.limits.max_wait_s)}s"
    return found


def _pools(plan: Plan, options: Options, placement: Placement) -> list[dict[str, Any]]:
    """Build the worker pools: pool 0 is the primary, exactly one node; pool 1 has all other nodes."""
    return [_pool(plan, options, placement, count) for count in (1, plan.nodes - 1) if count]


def _pool(plan: Plan, options: Options, placement: Placement, count: int) -> dict[str, Any]:
    machine: dict[str, Any] = {"machineType": placement.machine}
    if placement.accelerator is not None:
        machine["acceleratorType"] = machines.ACCELERATORS[placement.accelerator.kind]
        machine["acceleratorCount"] = placement.accelerator.count
    disk = plan.job.get("resources", {}).get("disk")
    gb = max(SMALLEST_DISK_GB, math.ceil(disk / 1e9)) if disk else SMALLEST_DISK_GB
    pool: dict[str, Any] = {
        "machineSpec": machine,
        "replicaCount": count,
        "diskSpec": {"bootDiskType": options.disk_type, "bootDiskSizeGb": gb},
        **_program(plan, options, placement),
    }
    mounts = [_nfs(mount) for mount in plan.job.get("mounts", ())]
    return {**pool, "nfsMounts": mounts} if mounts else pool


def _nfs(mount: Mapping[str, Any]) -> dict[str, str]:
    server, _, path = str(mount["nfs"]).partition(":")
    return {"server": server, "path": path, "mountPoint": str(mount["at"]).removeprefix(NFS).strip("/")}


def _program(plan: Plan, options: Options, placement: Placement) -> dict[str, Any]:
    outputs, image = str(plan.job["outputs"]), image_of(plan, options, placement)
    url, env = run_url(outputs, RUN), _environment(plan, options)
    if options.mode == "package":
        uris = [join(outputs, f"code/{plan.code.wheel}"), join(outputs, f"code/{package.file_name(plan)}")]
        spec = {"executorImageUri": image, "packageUris": uris, "pythonModule": package.MODULE, "env": env}
        return {"pythonPackageSpec": spec}
    if is_foreign_image(plan.job):
        command = [options.python, "-c", package.boot_source()]
        return {"containerSpec": {"imageUri": image, "command": command, "env": env}}
    command = [options.python, "-m", SUPERVISOR]
    return {"containerSpec": {"imageUri": image, "command": command, "args": ["--run", url], "env": env}}


def _environment(plan: Plan, options: Options) -> list[dict[str, str]]:
    """Return the job's variables, without secrets: the supervisor fetches those by the plan's references."""
    values = {
        "HEADWAY_RUN": RUN,
        "HEADWAY_RUN_URL": run_url(str(plan.job["outputs"]), RUN),
        "HEADWAY_TARGET": KIND,
        # The machine is in a project of Google's, so `gcp-sm://NAME` needs ours by name.
        "GOOGLE_CLOUD_PROJECT": str(options.project),
        # pip runs before the supervisor.
        **{name: str(value) for name, value in plan.job.get("env", {}).items() if name.startswith("PIP_")},
    }
    if options.mode == "package" or is_foreign_image(plan.job):
        values[SPEC] = json.dumps(_boot_spec(plan), sort_keys=True)
    else:
        values["HEADWAY_CODE_DIR"] = CODE_DIR
    return [{"name": name, "value": value} for name, value in values.items()]


def _boot_spec(plan: Plan) -> dict[str, Any]:
    needed = dependencies.of_record(plan.job)
    own = {"listed": list(needed.listed), "install": needed.install} if needed.listed or needed.install else {}
    return {
        **own,
        "code": plan.code.sha256,
        "wheel": plan.code.wheel,
        "wheel_sha256": plan.code.wheel_sha256,
        "requirements": needed.requirements,
        "needs": [] if plan.code.runtime else package.requirements(extras(plan.job)),
        "setup": [str(command) for command in plan.job.get("setup", ())],
        **({"runtime": plan.code.runtime} if plan.code.runtime else {}),
    }
