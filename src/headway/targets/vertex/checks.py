"""Problems that would stop a job on Vertex AI, each with its fix, and notes for its plan.

Only `image_problem` makes a request; everything else needs no credentials.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from headway.core.errors import Problem
from headway.packaging import dependencies, own_dockerfile, reference
from headway.packaging.supervisor_runtime import is_ready_image, unavailable_reason
from headway.spec.loading import dump
from headway.storage.google import GoogleError, NotFound
from headway.storage.secrets import Reference, parse
from headway.targets.checks import dependency_notes, interpreter_problems
from headway.targets.vertex import machines, package
from headway.targets.vertex.machines import Placement, placements, regions
from headway.targets.vertex.options import Options
from headway.targets.vertex.render import ENDING_S, NFS

if TYPE_CHECKING:
    from headway.spec import Job
    from headway.targets.vertex.client import Client


_PROJECT = re.compile(r"(?:[a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+\d+")
_NETWORK = re.compile(r"projects/[^/]+/global/networks/[^/]+")
_TENSORBOARD = re.compile(r"projects/[^/]+/locations/[^/]+/tensorboards/[^/]+")
_KEY = re.compile(r"projects/[^/]+/locations/[^/]+/keyRings/[^/]+/cryptoKeys/[^/]+")
_ACCOUNT = re.compile(r"[^@\s]+@[^@\s]+")
_LABEL_NAME, _LABEL_VALUE = re.compile(r"[a-z][a-z0-9_-]{0,62}"), re.compile(r"[a-z0-9_-]{0,63}")
_TORCH = re.compile(r"torch\s*(==|>=|~=|>)\s*(\d+)\.(\d+)")
_BUCKET = "gs://YOUR-BUCKET"


def problems(job: Job, options: Options) -> Iterator[Problem]:
    yield from _option_problems(options)
    yield from _label_problems(options)
    yield from interpreter_problems(job)
    yield from _folder_problems(job)
    yield from _data_problems(job)
    yield from _secret_problems(job, options)
    yield from _mount_problems(job, options)
    yield from _hardware_problems(job, options)
    yield from _image_problems(job, options)


def notes(job: Job, options: Options, today: date) -> Iterator[str]:
    first, *others = placements(job.resources, options)
    yield f"runs on {job.resources.nodes if job.resources.nodes > 1 else 'one'} × {first}, billed by Google"
    if others:
        yield f"then, in turn: {'; '.join(map(str, others))}"
    if options.mode == "package":
        uri = job.image.uri or package.default_uri(accelerated=first.accelerator is not None, region=first.region)
        yield from package.notes(uri, today)
    if options.mode == "container" and is_ready_image(dump(job)):
        yield f"{job.image.uri} is not looked into: its {options.python} (3.6 or newer) fetches the supervisor"
        reason = unavailable_reason()
        if reason:
            yield f"its Python must be 3.10 or newer, because the supervisor runs on it: {reason}"
    for placement in (first, *others):
        if machines.is_unknown_family(placement.machine):
            yield f"{placement.machine} is not in the table of {machines.AS_OF}: whether it exists is known at launch"
    yield from dependency_notes(job)
    yield from _queue_notes(job, options, first)
    if any(parse(secret.ref).kind == "gcp-sm" for secret in job.secrets.values()) and not options.service_account:
        yield (
            "secrets: Vertex AI's own agent needs read access to them (roles/secretmanager.secretAccessor), "
            "or name a `service_account` that may"
        )


def _queue_notes(job: Job, options: Options, first: Placement) -> Iterator[str]:
    flexible = options.strategy == "flex-start" and not first.spot
    if job.max_wait is not None and not flexible:
        yield "max_wait has no effect: Vertex AI enforces it only with strategy: flex-start"
    if options.fallback and options.switch_after is None:
        yield "fallback: tried only if Vertex AI refuses at once; switch_after: 20m also leaves a queue after 20 min"


def _option_problems(options: Options) -> Iterator[Problem]:
    if not options.project:
        fix = "targets: {vertex: {kind: vertex, project: YOUR-PROJECT, region: us-central1}}; gcloud projects list"
        yield Problem(what="the entry does not say which project is billed", where="targets.project", fix=fix)
    forms = {
        "project": (_PROJECT, "my-project"),
        "service_account": (_ACCOUNT, "trainer@my-project.iam.gserviceaccount.com"),
        "network": (_NETWORK, "projects/PROJECT-NUMBER/global/networks/default"),
        "tensorboard": (_TENSORBOARD, f"projects/my-project/locations/{options.region}/tensorboards/123"),
        "kms_key": (_KEY, f"projects/my-project/locations/{options.region}/keyRings/RING/cryptoKeys/KEY"),
    }
    for name, (form, example) in forms.items():
        value = getattr(options, name)
        if value and not form.fullmatch(value):
            what = f"{value!r} is not a valid {name}"
            yield Problem(what=what, where=f"targets.{name}", fix=f"write {name}: {example}")
    for region in regions(options):
        if not _REGION.fullmatch(region):
            what = f"{region!r} is not a valid region"
            yield Problem(what=what, where="targets.region", fix="write region: us-central1")
    if options.tensorboard and not options.service_account:
        what = "tensorboard needs a service_account, which writes to it"
        fix = "service_account: NAME@PROJECT.iam.gserviceaccount.com, with roles/aiplatform.user and the bucket's"
        yield Problem(what=what, where="targets.service_account", fix=fix)
    if options.timeout < ENDING_S:
        yield Problem(what=f"timeout: {options.timeout:g}s is too short", where="targets.timeout", fix="timeout: 1h")


def _label_problems(options: Options) -> Iterator[Problem]:
    for name, value in options.labels.items():
        if not _LABEL_NAME.fullmatch(name) or not _LABEL_VALUE.fullmatch(str(value)):
            what = f"the label {name}: {value} has characters other than a-z, 0-9, - and _, or more than 63"
            yield Problem(what=what, where="targets.labels", fix="lower case, the name starting with a letter")
        elif name.startswith("headway"):
            yield Problem(what=f"the label {name} is reserved for Headway", where="targets.labels", fix="rename it")
    if len(options.labels) > 60:  # Vertex AI takes 64
        yield Problem(what=f"{len(options.labels)} labels", where="targets.labels", fix="at most 60")


def _folder_problems(job: Job) -> Iterator[Problem]:
    """Check that Vertex AI's machines can reach every folder of the job."""
    named = {"outputs": job.outputs, "export.to": job.export.to, "init_from": job.init_from}
    for where, url in named.items():
        if url and not url.startswith("gs://"):
            what = f"{url} cannot be reached from Vertex AI's machines, which have the keys of Cloud Storage alone"
            rest = job.name if where == "export.to" else "runs"
            yield Problem(what=what, where=where, fix=f"{where.rpartition('.')[2]}: {_BUCKET}/{rest}")


def _data_problems(job: Job) -> Iterator[Problem]:
    for part in ("train", "val", "test"):
        for source in getattr(job.data, part):
            url = source.source
            if "://" not in url and not url.startswith("builtin:"):
                name = Path(url).name
                what = f"{url} is a folder of this machine"
                fix = f"gcloud storage cp -r {url} {_BUCKET}/data/, and source: {_BUCKET}/data/{name}"
                yield Problem(what=what, where=f"data.{part}", fix=fix)


def _secret_problems(job: Job, options: Options) -> Iterator[Problem]:
    for name, secret in job.secrets.items():
        problem = secret_problem(name, parse(secret.ref), options)
        if problem is not None:
            yield problem
    if job.notify.webhook:  # the run itself sends the notification when it ends
        problem = secret_problem("WEBHOOK", parse(job.notify.webhook), options)
        if problem is not None:
            fix = problem.fix.partition("; then")[0] + "; then notify: {webhook: gcp-sm://webhook}"
            yield Problem(what=problem.what, where="notify.webhook", fix=fix)


def secret_problem(name: str, reference: Reference, options: Options) -> Problem | None:
    """Return a problem unless the secret is in Secret Manager.

    Everybody who can see a job can read its variables, so a value cannot be sent along.
    """
    if reference.kind == "gcp-sm":
        return None
    stored = name.lower().replace("_", "-")
    create = f"gcloud secrets create {stored} --project={options.project or 'PROJECT'} --data-file="
    said = {
        "env": f'printf %s "${reference.name}" | {create}-',
        "file": f"{create}{reference.name}",
    }.get(reference.kind, f"{create}-")
    what = f"{reference} does not exist on Vertex AI's machines, and everybody who can see a job can read its variables"
    return Problem(what=what, where=f"secrets.{name}", fix=f"{said}; then secrets: {{{name}: gcp-sm://{stored}}}")


def _mount_problems(job: Job, options: Options) -> Iterator[Problem]:
    for mount in job.mounts:
        if not mount.nfs:
            what = f"Vertex AI mounts only NFS exports, not {mount.pvc or mount.path}"
            yield Problem(what=what, where="mounts", fix=f"mounts: [{{nfs: SERVER:/EXPORT, at: {NFS}data}}]")
            continue
        name = mount.at.removeprefix(NFS).strip("/")
        if not mount.at.startswith(NFS) or not name or "/" in name:
            tail = mount.at.strip("/").rpartition("/")[2] or "data"
            what = f"Vertex AI mounts only below {NFS}, not at {mount.at}"
            yield Problem(what=what, where="mounts", fix=f"at: {NFS}{tail}")
        if mount.read_only:
            what = "Vertex AI cannot mount read-only"
            yield Problem(what=what, where="mounts", fix="remove read_only, and export it read-only on the server")
        if not options.network:
            what = f"{mount.nfs} needs a peered network, and the target names none"
            fix = "network: projects/PROJECT-NUMBER/global/networks/NAME, in the target's entry"
            yield Problem(what=what, where="targets.network", fix=fix)


def _hardware_problems(job: Job, options: Options) -> Iterator[Problem]:
    first, *others = placements(job.resources, options)
    yield from machines.problems(first.machine, first.accelerator, where="resources")
    for placement in others:
        yield from machines.problems(placement.machine, placement.accelerator, where="targets.fallback")
    for name in ("cpus", "memory"):
        requested, known = getattr(job.resources, name), machines.MACHINES.get(first.machine)
        has = None if known is None else known.cpus if name == "cpus" else known.memory_gib * 2**30
        if requested and has and requested > has:
            shown = f"{requested / 1e9:g}GB" if name == "memory" else requested
            what = f"{first.machine} has less than {name}: {shown}"
            yield Problem(what=what, where=f"resources.{name}", fix="a bigger machine, or leave `machine` out")
    if options.strategy == "flex-start" and any(placement.spot for placement in (first, *others)):
        what = "spot and flex-start cannot be combined"
        yield Problem(what=what, where="targets.strategy", fix="strategy: standard, or spot: false")


def _image_problems(job: Job, options: Options) -> Iterator[Problem]:
    yield from reference.problems(dump(job)["image"], job.name)
    yield from dependencies.problems(job)
    if options.mode == "package":
        if job.image.uri:
            yield from package.problems(job.image.uri)
        if job.image.base or job.image.repository or job.image.dockerfile:
            what = "a package runs in one of Google's images: none is built"
            fix = "mode: container, or remove image.base, image.dockerfile and image.repository"
            yield Problem(what=what, where="image", fix=fix)
        yield from _torch_problems(job)
        return
    yield from own_dockerfile.problems(job)
    if not job.image.uri and not job.image.repository:
        placement = f"{options.region}-docker.pkg.dev/{options.project or 'PROJECT'}"
        fix = f"image: {{repository: {placement}/headway/{job.name}}}; or mode: package, which needs no image"
        yield Problem(what="the job does not say where its image goes", where="image.repository", fix=fix)


def _torch_problems(job: Job) -> Iterator[Problem]:
    """Check the requirements for a torch version that the image lacks: reported now, not on the machine."""
    path = Path(job.root) / (job.requirements or "")
    image = package.parse_uri(job.image.uri) if job.image.uri else package.IMAGES[package.NEWEST["gpu"]]
    if not job.requirements or not path.is_file() or image is None or image.torch is None:
        return
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        asked = _TORCH.match(line.strip())
        if asked is None:
            continue
        version, has = (int(asked[2]), int(asked[3])), image.torch
        fits = has == version if asked[1] == "==" else has > version if asked[1] == ">" else has >= version
        if not fits:
            what = f"{line.strip()} is not in {image.name}, and a package never replaces the image's torch"
            fix = f"torch>={has[0]}.{has[1]}, or no torch at all; or mode: container"
            yield Problem(what=what, where=f"{job.requirements}:{number}", fix=fix)


# Existence of the image (Artifact Registry only)


_IMAGE = re.compile(
    r"(?P<location>[a-z0-9-]+)-docker\.pkg\.dev/(?P<project>[^/]+)/(?P<repository>[^/]+)/(?P<name>[^:@]+)"
    r"(?::(?P<tag>[^@]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
GOOGLE_REGISTRIES = "vertex-ai"  # Google's project of prebuilt images, which nobody else may list


def image_problem(client: Client, uri: str) -> Problem | None:
    """Return a problem if Artifact Registry lacks the image.

    Return None for other registries, and where we lack permission: Vertex AI will report it.
    """
    named = _IMAGE.fullmatch(uri)
    if named is None or named["project"] == GOOGLE_REGISTRIES:
        return None
    version = ("versions", named["digest"]) if named["digest"] else ("tags", named["tag"] or "latest")
    try:
        client.image(named["project"], named["location"], named["repository"], named["name"], *version)
        return None
    except NotFound:
        folder = f"{named['location']}-docker.pkg.dev/{named['project']}/{named['repository']}"
        fix = f"headway image --push; or one of: gcloud artifacts docker images list {folder} --include-tags"
        return Problem(what=f"there is no image {uri}", where="image.uri", fix=fix)
    except GoogleError:
        return None
