"""The exact objects, as people review them, and as the cluster's schemas hold them. Pure: no cluster, no client."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from headway.core.errors import BadInput
from headway.core.plan import RUN
from headway.packaging import supervisor_image
from headway.spec.model import Budget, Image, Mount, Resources, Secret
from headway.targets.kubernetes import checks, manifests, trainjob
from headway.targets.kubernetes import options as kubernetes_options
from headway.targets.kubernetes import pod as kubernetes_pod
from headway.targets.kubernetes.options import Engine, Options, Trainer
from headway.targets.kubernetes.target import KubernetesTarget
from tests.targets.kubernetes import admission, schemas
from tests.targets.kubernetes.plans import FULL, FULL_OPTIONS, job_of, plan_of, rendered

GOLDEN = Path(__file__).parent / "golden"
ENGINES: tuple[Engine, ...] = get_args(Engine)
TRAINERS: tuple[Trainer, ...] = get_args(Trainer)


def all_cases() -> Iterator[tuple[str, Options, dict[str, Any]]]:
    for engine in ENGINES:
        for release in TRAINERS if engine == "trainjob" else (None,):
            name = f"{engine}-{release}" if release else engine
            yield f"{name}-plain", Options(engine=engine, trainer=release), {}
            yield f"{name}-full", Options(engine=engine, trainer=release, **FULL_OPTIONS), FULL


CASES = list(all_cases())
EVERY = pytest.mark.parametrize(("options", "changes"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])


@pytest.fixture(autouse=True)
def _nothing_was_pushed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path))


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_the_objects_are_the_ones_that_were_reviewed(case: tuple[str, Options, dict[str, Any]]) -> None:
    name, options, changes = case
    shown = json.dumps(rendered(options, **changes), indent=1) + "\n"
    assert shown == (GOLDEN / f"{name}.json").read_text(), (
        f"python -m tests.targets.kubernetes.test_render renews {name}"
    )


def made(options: Options, **changes: Any) -> list[dict[str, Any]]:
    """All objects, without the stroke that starts them."""
    return [body for name, body in rendered(options, **changes).items() if name != manifests.START_FILE]


@EVERY
def test_kubernetes_own_schemas_take_every_object(options: Options, changes: dict[str, Any]) -> None:
    validator = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    for body in made(options, **changes):
        if body["kind"] not in ("PyTorchJob", "TrainJob"):
            for release in schemas.RELEASES:
                validator.validate(body, release, strict=True)


@pytest.mark.parametrize("release", ["1.8.1", "1.9.0"])
@pytest.mark.parametrize("full", [False, True])
def test_every_release_of_the_training_operator_takes_the_job(release: str, full: bool) -> None:
    options = Options(engine="pytorchjob", **(FULL_OPTIONS if full else {}))
    body = rendered(options, **(FULL if full else {}))["pytorchjob.json"]
    assert schemas.problems(body, f"pytorchjobs-v{release}") == []


@pytest.mark.parametrize("release", TRAINERS)
@pytest.mark.parametrize("full", [False, True])
def test_every_release_of_kubeflow_trainer_takes_the_job_rendered_for_it(release: Trainer, full: bool) -> None:
    options = Options(engine="trainjob", trainer=release, **(FULL_OPTIONS if full else {}))
    body = rendered(options, **(FULL if full else {}))["trainjob.json"]
    assert schemas.problems(body, f"trainjobs-v{release}.0") == []


@pytest.mark.parametrize("engine", ["statefulset", "pytorchjob"])
def test_an_init_container_brings_the_supervisor_into_an_image_without_headway(engine: Engine) -> None:
    options = Options(engine=engine, supervisor="gcr.io/p/supervisor", python="python3.8")
    plan = plan_of(options, **FULL)
    plan = replace(plan, code=replace(plan.code, runtime="runtime-1.tar.gz"))
    bodies = {request.name: json.loads(json.dumps(request.body)) for request in manifests.requests(plan, options)}
    bodies.pop(manifests.START_FILE)
    assert [admission.admission_problems(body) for body in bodies.values()] == [[]] * len(bodies)
    pods = [pod for body in bodies.values() for _, pod in admission.pods(body)]
    (worker,) = [pod for pod in pods if "initContainers" in pod][:1]
    (init,), container = worker["initContainers"], worker["containers"][0]
    name = supervisor_image.image_name("gcr.io/p/supervisor", plan.code)
    assert init["image"] == name
    assert init["command"][0] == "/runtime/lib/ld.so"
    assert container["image"] == "gcr.io/p/i:1"
    assert container["command"][0] == "/headway/runtime/lib/ld.so"
    assert container["command"][-3:] == ["headway.runtime.worker", "--run", "gs://bucket/runs/{RUN}"]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    assert variables["HEADWAY_PYTHON"] == "python3.8"
    assert "PYTHONPATH" not in variables
    shared = [mount["mountPath"] for mount in init["volumeMounts"]]
    assert {"/headway/runtime", "/headway/wheel", "/headway/code"} <= set(shared)
    others = [each["image"] for pod in pods for each in pod["containers"] if each["name"] == "reaper"]
    assert set(others) <= {name}, "no pod of a run needs Headway in the job's image"


def test_the_supervisor_is_refused_where_no_init_container_can_be_added() -> None:
    job = job_of()
    refused = list(checks.problems(job, Options(engine="trainjob", supervisor="gcr.io/p/supervisor")))
    assert any("TrainJob cannot have the init container" in problem.what for problem in refused)
    assert not list(checks.problems(job, Options(supervisor="gcr.io/p/supervisor")))


def test_a_job_for_another_release_would_be_refused() -> None:
    body = rendered(Options(engine="trainjob", trainer="2.0"))["trainjob.json"]
    assert schemas.problems(body, "trainjobs-v2.3.0")


@pytest.mark.parametrize("release", TRAINERS)
def test_the_installed_release_is_known_by_its_schema(release: Trainer) -> None:
    (version,) = schemas.crd(f"trainjobs-v{release}.0")["spec"]["versions"]
    assert trainjob.release_of(version["schema"]["openAPIV3Schema"]) == release


def test_a_release_without_a_deadline_has_none_and_the_plan_says_so() -> None:
    for release in TRAINERS:
        options = Options(engine="trainjob", trainer=release)
        spec = rendered(options, **FULL)["trainjob.json"]["spec"]
        second = plan_of(options, **FULL).limits.second
        assert ("activeDeadlineSeconds" in spec) == (release in kubernetes_pod.WITH_DEADLINE) == ("32715" in second), (
            second
        )


@EVERY
def test_our_own_rules_take_every_object(options: Options, changes: dict[str, Any]) -> None:
    for body in made(options, **changes):
        assert admission.admission_problems(body) == []


@EVERY
def test_everything_is_labelled_and_owned_by_what_starts_the_run_which_the_fuse_owns(
    options: Options, changes: dict[str, Any]
) -> None:
    lit, first, *others = made(options, **changes)
    for body in (lit, first, *others):
        assert body["metadata"]["labels"]["headway.run"] == RUN
        assert body["metadata"]["annotations"]["headway.url"] == "gs://bucket/runs/{RUN}"
    (owner,) = first["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == (
        "Job",
        lit["metadata"]["name"],
        kubernetes_options.GUARD_UID,
    )
    assert "ownerReferences" not in lit["metadata"]
    for body in others:
        (owner,) = body["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["name"]) == (first["kind"], first["metadata"]["name"])
        assert owner["uid"] == kubernetes_options.OWNER_UID


@EVERY
def test_nothing_runs_before_the_last_request_which_starts_it_and_takes_it_from_the_fuse(
    options: Options, changes: dict[str, Any]
) -> None:
    *_, (name, stroke) = rendered(options, **changes).items()
    lit, first, *others = made(options, **changes)
    assert name == manifests.START_FILE
    assert (stroke["kind"], stroke["metadata"]["name"]) == (first["kind"], first["metadata"]["name"])
    assert stroke["metadata"]["ownerReferences"] is None
    assert (lit["spec"]["completions"], lit["spec"]["ttlSecondsAfterFinished"]) == (0, manifests.GUARD_TTL_S)
    if first["kind"] == "PyTorchJob":
        assert first["spec"]["runPolicy"]["suspend"] is True
        assert stroke["spec"] == {"runPolicy": {"suspend": False}}
    elif first["kind"] == "TrainJob":
        assert first["spec"]["suspend"] is True
        assert stroke["spec"] == {"suspend": False}
    else:
        assert first["spec"]["parallelism"] == 0
        assert stroke["spec"] == {"parallelism": 1}
        assert [body["spec"]["replicas"] for body in others if body["kind"] == "StatefulSet"] == [0]


def test_a_fuse_of_no_number_of_seconds_is_refused() -> None:
    with pytest.raises(BadInput, match="HEADWAY_TIMING: fuse is 'soon'"):
        rendered(Options(), env={"HEADWAY_TIMING": "fuse=soon"})


@EVERY
def test_pods_have_no_power_and_no_token(options: Options, changes: dict[str, Any]) -> None:
    lit, *others = made(options, **changes)
    assert lit["spec"]["template"]["spec"]["automountServiceAccountToken"] is False
    for body in others:
        for where, pod in admission.pods(body):
            (container,) = pod["containers"]
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert container["securityContext"]["readOnlyRootFilesystem"] is True
            assert pod["securityContext"]["runAsNonRoot"] is True
            assert pod["securityContext"]["fsGroup"] == 1000
            writable = {mount["mountPath"] for mount in container["volumeMounts"]}
            assert {"/tmp", "/home/headway", "/dev/shm"} <= writable
            assert pod["automountServiceAccountToken"] is (body["kind"] == "Job"), where


def test_the_reaper_may_get_scale_and_delete_this_one_set_and_nothing_else() -> None:
    objects = rendered(Options(namespace="ml"))
    one = {"apiGroups": ["apps"], "resourceNames": [RUN]}
    assert objects["role.json"]["rules"] == [
        {**one, "resources": ["statefulsets"], "verbs": ["get", "delete"]},
        {**one, "resources": ["statefulsets/scale"], "verbs": ["patch"]},
    ]
    reaper = objects["reaper.json"]["spec"]["template"]["spec"]
    assert reaper["serviceAccountName"] == objects["rolebinding.json"]["subjects"][0]["name"] == "{RUN}-reaper"
    worker = objects["statefulset.json"]["spec"]["template"]["spec"]
    assert "serviceAccountName" not in worker


def test_the_reaper_waits_on_a_node_without_gpus_and_reads_the_bucket_as_the_workers_do() -> None:
    reaper = rendered(Options(**FULL_OPTIONS), **FULL)["reaper.json"]["spec"]["template"]["spec"]
    assert "nvidia.com/gpu" not in json.dumps(reaper)
    assert "nodeSelector" not in reaper
    assert reaper["tolerations"] == [{"key": "night", "operator": "Exists"}], "where all nodes have that taint"
    assert reaper["serviceAccountName"] == "gcs-access"


def test_behind_the_reapers_timer_stands_its_jobs_own_deadline_which_takes_everything_along() -> None:
    objects = rendered(Options(), budget=Budget(hours=1), max_wait=600.0)
    job = objects["reaper.json"]["spec"]
    words = job["template"]["spec"]["containers"][0]["command"]
    lifetime = int(words[words.index("--lifetime") + 1])
    assert lifetime == 600 + 3600 + 30 + 300
    assert job["activeDeadlineSeconds"] > lifetime
    assert job["ttlSecondsAfterFinished"] == 60
    assert words[words.index("--max-wait") + 1] == "600"


def test_a_run_without_a_budget_has_no_deadline_anywhere() -> None:
    for engine in ENGINES:
        assert "activeDeadlineSeconds" not in json.dumps(rendered(Options(engine=engine)))


def test_what_was_spent_is_taken_off_the_deadline_of_the_next_start() -> None:
    options = Options(engine="pytorchjob")
    plan = plan_of(options, budget=Budget(hours=1), max_wait=0.0)
    deadlines = [
        manifests.requests(plan, options, spent_s=spent)[1].body["spec"]["runPolicy"]["activeDeadlineSeconds"]
        for spent in (0.0, 1800.0)
    ]
    assert deadlines[0] - deadlines[1] == 1800


def test_one_number_sets_the_workers() -> None:
    for nodes in (1, 2, 5):
        more = {"resources": Resources(nodes=nodes)}
        words = rendered(Options(), **more)["reaper.json"]["spec"]["template"]["spec"]["containers"][0]["command"]
        assert words[words.index("--workers") + 1] == str(nodes)
        replicas = rendered(Options(engine="pytorchjob"), **more)["pytorchjob.json"]["spec"]["pytorchReplicaSpecs"]
        assert sum(each["replicas"] for each in replicas.values()) == nodes
        assert rendered(Options(engine="trainjob"), **more)["trainjob.json"]["spec"]["trainer"]["numNodes"] == nodes


def test_a_set_starts_as_a_gang_and_finds_itself_before_it_is_ready() -> None:
    objects = rendered(Options())
    assert objects["statefulset.json"]["spec"]["podManagementPolicy"] == "Parallel"
    assert objects["service.json"]["spec"]["publishNotReadyAddresses"] is True
    assert objects["service.json"]["spec"]["clusterIP"] == "None"
    env = {each["name"]: each.get("value") for each in workers(objects)[0]["env"]}
    assert env["HEADWAY_AFTER_END"] == "idle"


def test_a_preempted_worker_is_started_again_and_a_failed_one_is_not() -> None:
    replicas = rendered(Options(engine="pytorchjob"))["pytorchjob.json"]["spec"]["pytorchReplicaSpecs"]
    assert {each["restartPolicy"] for each in replicas.values()} == {"ExitCode"}
    policy = rendered(Options(engine="pytorchjob"))["pytorchjob.json"]["spec"]["runPolicy"]
    assert "backoffLimit" not in policy


def test_only_references_to_secrets_are_in_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_WANDB_KEY", "canary-value")
    objects = rendered(Options(), **FULL)
    assert "canary-value" not in json.dumps(objects)
    assert objects["secret.json"]["stringData"] == {"WANDB_API_KEY": "<env:MY_WANDB_KEY>"}
    (container,) = workers(objects)
    env = {each["name"]: each for each in container["env"]}
    assert env["TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "hub", "key": "token"}
    assert "OTHER" not in env, "the pod fetches it itself"
    volumes = objects["statefulset.json"]["spec"]["template"]["spec"]["volumes"]
    (secrets,) = [each["projected"] for each in volumes if each["name"] == "secrets"]
    assert {"secret": {"name": "hub", "items": [{"key": "key.pem", "path": "KEY"}]}} in secrets["sources"]


def test_a_ready_image_a_pushed_digest_or_a_name_by_content_is_what_pods_run() -> None:
    assert workers(rendered(Options()))[0]["image"] == "gcr.io/p/i:1"
    built = rendered(Options(), image=Image(repository="us-docker.pkg.dev/project/repo/captions"))
    assert workers(built)[0]["image"].startswith("us-docker.pkg.dev/project/repo/captions:")


def test_nodes_are_chosen_by_accelerator_machine_and_spot() -> None:
    pod = rendered(Options(**FULL_OPTIONS), **FULL)["statefulset.json"]["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-accelerator": "nvidia-tesla-t4",
        "cloud.google.com/gke-spot": "true",
        "node.kubernetes.io/instance-type": "n1-standard-8",
        "disk": "ssd",
    }
    assert {each["key"] for each in pod["tolerations"]} == {"nvidia.com/gpu", "cloud.google.com/gke-spot", "night"}
    plain = rendered(Options(platform="plain"), **FULL)["statefulset.json"]["spec"]["template"]["spec"]
    assert "cloud.google.com" not in json.dumps(plain)
    assert plain["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "4"


def test_a_spot_node_gives_fifteen_seconds_whatever_is_asked() -> None:
    assert plan_of(Options(grace=60.0), **FULL).limits.grace_s == 15.0
    assert plan_of(Options(grace=60.0)).limits.grace_s == 60.0


def _two_masters(body: dict[str, Any]) -> None:
    body["spec"]["pytorchReplicaSpecs"]["Master"]["replicas"] = 2


def _another_container(body: dict[str, Any]) -> None:
    body["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["name"] = "x"


def _another_role(body: dict[str, Any]) -> None:
    body["spec"]["pytorchReplicaSpecs"]["Chief"] = body["spec"]["pytorchReplicaSpecs"]["Master"]


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (_two_masters, "one Master"),
        (_another_container, "named pytorch"),
        (_another_role, "Chief"),
        (lambda body: body["metadata"].update(name="1run"), "cannot be a name"),
        (lambda body: body["metadata"]["labels"].update(team="a b"), "value of the label"),
    ],
)
def test_what_the_operators_webhook_refuses_is_refused_here(spoil: Any, complaint: str) -> None:
    body = copy.deepcopy(rendered(Options(engine="pytorchjob"), **FULL)["pytorchjob.json"])
    spoil(body)
    assert any(complaint in problem for problem in admission.admission_problems(body))


def test_names_that_an_engine_cannot_carry_are_refused() -> None:
    stateful = kubernetes_options.fill_placeholders(rendered(Options())["statefulset.json"], {RUN: "n" * 53})
    assert any("52" in problem for problem in admission.admission_problems(stateful))
    job = kubernetes_options.fill_placeholders(
        rendered(Options(engine="trainjob"), **FULL)["trainjob.json"], {RUN: "n" * 49}
    )
    assert any("characters" in problem for problem in admission.admission_problems(job))


def test_a_variable_that_kubeflow_trainer_sets_is_refused() -> None:
    body = rendered(Options(engine="trainjob"), env={"PET_NNODES": "3"})["trainjob.json"]
    assert any("PET_NNODES" in problem for problem in admission.admission_problems(body))


def test_a_mount_over_another_is_refused() -> None:
    mounts = (Mount(pvc="a", at="/data"), Mount(pvc="b", at="/data"))
    body = rendered(Options(), mounts=mounts)["statefulset.json"]
    assert any("mounted at /data" in problem for problem in admission.admission_problems(body))


def test_a_secret_as_a_file_is_mounted_and_never_a_variable() -> None:
    objects = rendered(Options(), secrets={"KEY": Secret(ref="k8s://hub/key", as_="file")})
    assert "KEY" not in {each["name"] for each in workers(objects)[0]["env"]}
    assert "secret.json" not in objects, "the cluster has it already"


def test_planning_and_rendering_need_neither_a_client_nor_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nowhere")
    options = Options()
    assert KubernetesTarget(options).render(plan_of(options))
    code = "import headway.targets.kubernetes.target, sys; print('kubernetes' in sys.modules, 'yaml' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False"


def workers(objects: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = objects["statefulset.json"]["spec"]["template"]["spec"]["containers"]
    return found


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for case_name, case_options, case_changes in CASES:
        text = json.dumps(rendered(case_options, **case_changes), indent=1) + "\n"
        (GOLDEN / f"{case_name}.json").write_text(text)
