"""Rules for errors of Kubernetes, Docker, Slurm and ssh."""

from __future__ import annotations

from headway.diagnose.matching import FailureRule, Retry

RULES = (
    FailureRule(
        name="image-not-found",
        pattern=r"manifest (?:for (?P<image>\S+) )?(?:unknown|not found)|MANIFEST_UNKNOWN"
        r"|repository does not exist or may require"
        r"|Image '?(?P<uri>\S+?)'? (?:not found|does not exist)|pull access denied for (?P<name>\S+)"
        r"|name unknown: (?:The )?repository|[Nn]o such image:? ?(?P<missing>\S*)",
        cause="the image is not in the registry",
        fix="headway image --push   (and see image.repository or image.uri in the job file)",
    ),
    FailureRule(
        name="image-pull-denied",
        pattern=r"(?:Failed to pull image|pulling image).*(?:401 Unauthorized|403 Forbidden|authorization failed"
        r"|unauthorized)"
        r"|no basic auth credentials|unauthorized: authentication (?:required|failed)|error getting credentials",
        cause="the nodes have no permission to pull the image",
        fix="pull_secrets: in the target (kubectl create secret docker-registry …), or gcloud auth configure-docker"
        " {region}-docker.pkg.dev where you push",
    ),
    FailureRule(
        name="image-pull-limit",
        pattern=r"toomanyrequests:|reached your (?:unauthenticated )?pull rate limit",
        cause="the registry limits how many images are pulled",
        fix="wait, or log in where you pull: pull_secrets: in the target (kubectl create secret docker-registry …)",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="image-pull-network",
        pattern=r"(?:failed to (?:pull|resolve|do request|copy)|pulling (?:image|from host)|Get \"https?://[^\"]+/v2/).*"
        r"(?:i/o timeout|TLS handshake timeout|connection (?:refused|reset)|no such host|unexpected EOF"
        r"|deadline exceeded|server misbehaving|network is unreachable)",
        cause="the node cannot reach the image's registry",
        fix="check the registry's name in image.uri or image.repository, and the node's network and DNS",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="container-not-created",
        pattern=r"CreateContainer(?:Config)?Error|RunContainerError|failed to create (?:containerd task|shim task)"
        r"|OCI runtime create failed: (?!.*no such file)|failed to create containerd container",
        cause="the container runtime cannot start the container",
        fix="kubectl describe pod -n {namespace} -l headway.run={run}   (the events say why)",
    ),
    FailureRule(
        name="image-pull",
        pattern=r"ImagePullBackOff|ErrImagePull|InvalidImageName|Back-off pulling image \"?(?P<image>[^\"\s]*)",
        cause="the node cannot pull the image",
        fix="kubectl describe pod -n {namespace} -l headway.run={run}   (the events say why); headway image --push",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="kubernetes-forbidden",
        pattern=r"User \"(?P<user>[^\"]+)\" cannot (?P<verb>\w+) resource \"(?P<resource>[\w/]+)\""
        r" in API group \"(?P<group>[\w.]*)\" in the namespace \"(?P<namespace>[^\"]+)\"",
        cause="{user} has no permission to {verb} {resource} in namespace {namespace}",
        fix="kubectl create role headway --verb={verb} --resource={resource} -n {namespace} && kubectl create"
        " rolebinding headway"
        " --role=headway --user={user} -n {namespace}",
    ),
    FailureRule(
        name="kubernetes-unauthorized",
        pattern=r"You must be logged in to the server|error: You must be logged in|gke-gcloud-auth-plugin not found"
        r"|exec: executable \S+ (?:not found|failed)|the server has asked for the client to provide credentials",
        cause="the cluster rejected your credentials",
        fix="gcloud container clusters get-credentials {cluster} --location {location} --project {project}",
    ),
    FailureRule(
        name="cluster-unreachable",
        pattern=r"connection to the server \S+ was refused|Unable to connect to the server"
        r"|couldn't get current server API group list",
        cause="the cluster's API is unreachable",
        fix="kubectl cluster-info; then gcloud container clusters get-credentials {cluster} --location {location}",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="namespace-missing",
        pattern=r"namespaces? \"(?P<namespace>[^\"]+)\" not found",
        cause="the namespace {namespace} does not exist",
        fix="kubectl create namespace {namespace}",
    ),
    FailureRule(
        name="operator-missing",
        pattern=r"no matches for kind \"(?P<kind>PyTorchJob|TrainJob|ClusterTrainingRuntime)\""
        r"|the server could not find the requested resource.*(?:pytorchjobs|trainjobs)",
        cause="Kubeflow's operator is not installed in the cluster",
        fix="headway doctor --on {target}   (prints the kubectl apply), or engine: statefulset, which needs none",
    ),
    FailureRule(
        name="service-account-missing",
        pattern=r"serviceaccounts? \"(?P<account>[^\"]+)\" not found"
        r"|error looking up service account \S+/(?P<name>[\w-]+)",
        cause="the Kubernetes service account does not exist",
        fix="kubectl create serviceaccount {service_account} -n {namespace}   (headway infra gcp prints the"
        " whole set-up)",
    ),
    FailureRule(
        name="no-node-fits",
        pattern=r"\d+/\d+ nodes are available.*(?:Insufficient|didn't match|had untolerated taint)"
        r"|didn't trigger scale-up"
        r"|FailedScheduling|NotTriggerScaleUp",
        cause="no node has enough resources, and none can be added",
        fix="kubectl get nodes -L cloud.google.com/gke-accelerator; add a pool: headway infra gcp; or request less",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="volume-not-mounted",
        pattern=r"persistentvolumeclaim \"(?P<claim>[^\"]+)\" not found|Unable to attach or mount volumes"
        r"|FailedMount|mount\.nfs"
        r"|FailedAttachVolume|invalid mount config for type \"bind\": bind source path does not exist: (?P<path>\S+)",
        cause="a volume of `mounts` cannot be mounted",
        fix="kubectl get pvc -n {namespace}; for NFS: check the export and the nodes' network; for a path: that it"
        " exists there",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="crash-loop",
        pattern=r"CrashLoopBackOff|Back-off restarting failed container",
        cause="the container exits repeatedly right after it starts",
        fix="headway logs {run}; if that is empty: kubectl logs -n {namespace} -l headway.run={run} --previous",
        retry=Retry.ONCE,
    ),
    FailureRule(
        name="command-not-found",
        pattern=r"executable file not found in \$PATH|exec: \"(?P<command>[^\"]+)\".*no such file"
        r"|OCI runtime create failed.*no such file"
        r"|StartError.*no such file|python3?: (?:command )?not found",
        cause="the image does not contain the program, usually python3",
        fix="headway image --build builds one with it; or set `python` in the target to the interpreter",
    ),
    FailureRule(
        name="headway-not-in-image",
        pattern=r"No module named '?headway",
        cause="Headway is not installed where the program runs",
        fix="headway image --push   (builds one with it)",
        fix_here="name an interpreter of Python 3.10 or newer (python: in the job file), which can import Headway",
    ),
    FailureRule(
        name="admission-refused",
        pattern=r"admission webhook \"(?P<webhook>[^\"]+)\" denied the request|violates PodSecurity"
        r"|is forbidden: violates",
        cause="the cluster's admission policy rejects the pod",
        fix="the message names the policy; ask the cluster's administrator, or use another namespace",
    ),
    FailureRule(
        name="docker-not-running",
        pattern=r"Cannot connect to the Docker daemon|Is the docker daemon running|error during connect.*docker",
        cause="Docker is not running on this machine, or you have no access to it",
        fix="sudo systemctl start docker; sudo usermod -aG docker $USER, then log in again",
    ),
    FailureRule(
        name="docker-permission",
        pattern=r"permission denied while trying to connect to the Docker daemon socket",
        cause="you have no permission to use Docker on this machine",
        fix="sudo usermod -aG docker $USER, then log in again",
    ),
    FailureRule(
        name="slurm-partition",
        pattern=r"invalid partition specified: ?(?P<partition>\S*)|Requested node configuration is not available"
        r"|Invalid generic resource \(gres\) specification",
        cause="the Slurm cluster has no such partition, node or accelerator",
        fix="sinfo -o '%P %G %c %m'; then set partition and gres in the target",
    ),
    FailureRule(
        name="slurm-account",
        pattern=r"Invalid account or account/partition combination|Invalid qos specification",
        cause="you have no permission for this account, or not on that partition",
        fix="sacctmgr show assoc user=$USER format=account,partition,qos; then set account and qos in the target",
    ),
    FailureRule(
        name="slurm-time-limit",
        pattern=r"DUE TO TIME LIMIT|JobState=TIMEOUT|\bTIMEOUT\b.*slurm",
        cause="Slurm ended the job at its time limit",
        fix="headway resume {run}   ({again}), or raise `time` of the target",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="slurm-node-failed",
        pattern=r"DUE TO NODE FAILURE|NODE_FAIL",
        cause="a node of the cluster failed",
        fix="headway resume {run}   ({again})",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="ssh-refused",
        pattern=r"ssh: connect to host \S+ port \d+: (?:Connection refused|Connection timed out|No route to host)"
        r"|Host key verification failed|Permission denied \(publickey",
        cause="the SSH connection to the machine failed",
        fix="try it by hand: ssh -v USER@HOST; then headway doctor",
        retry=Retry.WAIT,
    ),
)
