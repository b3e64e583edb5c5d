"""Rules for errors of clouds: permissions, quota, capacity, credentials."""

from __future__ import annotations

from headway.diagnose.matching import FailureRule, Retry

RULES = (
    FailureRule(
        name="credentials-expired",
        pattern=r"Reauthentication (?:is needed|failed)|RefreshError|invalid_grant|Token has been expired or revoked"
        r"|ExpiredToken|credentials have expired|token (?:is|has) expired|RequestExpired",
        cause="the credentials have expired",
        fix="gcloud auth login && gcloud auth application-default login   (AWS: aws sso login)",
    ),
    FailureRule(
        name="no-credentials",
        pattern=r"default credentials were not found|DefaultCredentialsError|Unable to locate credentials"
        r"|NoCredentialsError"
        r"|no AWS credentials|You do not currently have an active account selected",
        cause="no credentials were found",
        fix="gcloud auth application-default login   (AWS: aws configure; on GKE: service_account with Workload"
        " Identity)",
    ),
    FailureRule(
        name="act-as",
        pattern=r"(?:iam\.serviceAccounts\.actAs"
        r"|do not have permission to act as service.?account:? ?(?P<account>[\w.@-]*))",
        cause="you have no permission to act as that service account",
        fix='gcloud iam service-accounts add-iam-policy-binding {service_account} --member=user:"$(gcloud config'
        ' get account)"'
        " --role=roles/iam.serviceAccountUser",
    ),
    FailureRule(
        name="vertex-permission",
        pattern=r"Permission '?(?P<permission>aiplatform\.[\w.]+)'? denied",
        cause="you have no permission to use Vertex AI in this project ({permission})",
        fix='gcloud projects add-iam-policy-binding {project} --member=user:"$(gcloud config get account)"'
        " --role=roles/aiplatform.user",
    ),
    FailureRule(
        name="image-permission",
        pattern=r"Permission \"?artifactregistry\.\w+\.\w+\"? denied|denied: Permission .*artifactregistry"
        r"|does not have permission to access the image",
        cause="the training machine has no permission to read the image's registry",
        fix="gcloud artifacts repositories add-iam-policy-binding {repository} --location={region}"
        " --member=serviceAccount:{service_account} --role=roles/artifactregistry.reader",
    ),
    FailureRule(
        name="secret-permission",
        pattern=r"secretmanager\.versions\.access|(?:may not|no permission to) read the secret (?P<secret>\S+)"
        r"|AccessDenied.*secretsmanager",
        cause="the training machine has no permission to read a secret",
        fix="gcloud secrets add-iam-policy-binding {secret} --member=serviceAccount:{service_account}"
        " --role=roles/secretmanager.secretAccessor",
    ),
    FailureRule(
        name="bucket-permission",
        pattern=r"(?P<who>[\w.@-]*) ?does not have (?P<permission>storage\.[\w.]+) access"
        r"|storage\.objects\.\w+ (?:permission|access)"
        r"|AccessDenied.*(?:PutObject|GetObject|ListObjects)|AuthorizationPermissionMismatch",
        cause="the training machine has no permission to read or write the bucket",
        fix="gcloud storage buckets add-iam-policy-binding gs://{bucket} --member=serviceAccount:{service_account}"
        " --role=roles/storage.objectUser",
    ),
    FailureRule(
        name="api-disabled",
        pattern=r"(?P<api>[\w-]+\.googleapis\.com)[^ ]* has not been used in project (?P<project>\S+) before or"
        r" it is disabled"
        r"|SERVICE_DISABLED|API has not been used in project",
        cause="a Google API is not enabled in this project",
        fix="gcloud services enable {api} --project={project}",
    ),
    FailureRule(
        name="billing-disabled",
        pattern=r"BILLING_DISABLED|requires billing to be enabled|billing account .* is (?:disabled|closed)",
        cause="the project has no billing account",
        fix="gcloud billing projects link {project} --billing-account=…",
    ),
    FailureRule(
        name="quota-zero",
        pattern=r"Quota '(?P<name>\w+)' exceeded.*Limit: 0(?:\.0)?\b",
        cause="the project has no quota at all for this: waiting does not help",
        fix="request some: https://console.cloud.google.com/iam-admin/quotas?project={project}   (or --set"
        " resources.accelerator=…)",
    ),
    FailureRule(
        name="quota-needs-limits",
        pattern=r"failed quota: (?P<quota>[\w.-]+): must specify (?P<missing>[\w.,/ -]+)",
        cause="the namespace's quota {quota} admits only pods that state {missing}",
        fix="state them: --set resources.cpus=4 --set resources.memory=16GB",
    ),
    FailureRule(
        name="quota",
        pattern=r"quota metrics exceed quota limits:? ?(?P<metric>[\w./]*)|QUOTA_EXCEEDED"
        r"|Quota '(?P<name>\w+)' exceeded"
        r"|(?<!disk )quota (?:exceeded|limit)|Quota failure for project|VcpuLimitExceeded|exceeded quota: (?P<own>\S+)",
        cause="the quota of the project or namespace is exceeded",
        fix="request more: https://console.cloud.google.com/iam-admin/quotas?project={project}   (or --set"
        " resources.accelerator=…,"
        " another region, spot)",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="stock-out",
        pattern=r"ZONE_RESOURCE_POOL_EXHAUSTED|does not have enough resources available to fulfill the request"
        r"|STOCKOUT"
        r"|InsufficientInstanceCapacity|Resources are insufficient in region:? ?(?P<region>[\w-]*)"
        r"|GCE out of resources"
        r"|currently unavailable in the \S+ zone",
        cause="the cloud has no capacity for this machine in that zone or region at the moment",
        fix="headway prices {accelerator} shows other regions; or another accelerator, or max_wait: 6h to wait for one",
        retry=Retry.WAIT,
    ),
    FailureRule(
        name="preempted",
        pattern=r"(?:instance|VM|node|job|worker) was preempted|\bPREEMPTED\b|spot (?:instance|VM).*(?:reclaimed"
        r"|terminated)"
        r"|node is (?:being )?shut(?:ting)? down|imminent node shutdown",
        cause="the spot machine was preempted",
        fix="headway resume {run}   ({again}; --set resources.spot=false uses on-demand machines)",
        retry=Retry.RETRY,
    ),
    FailureRule(
        name="machine-not-offered",
        pattern=r"Machine type \"?(?P<machine>[\w-]+)\"? is not supported|accelerator type .* (?:is not supported"
        r"|not found)"
        r"|Invalid value for field 'resource\.machineType'|NVIDIA_\w+ is not supported for machine type",
        cause="this machine type does not exist there, or not with this accelerator",
        fix="headway prices {accelerator} lists what each region offers; leave out resources.machine for the default",
    ),
)
