"""Find credentials in the content and the names of files: private keys, cloud accounts, tokens of known shapes.

Only shapes that are specific to credentials are matched, never "a long random string": hashes of lock files, pictures
in notebooks and embeddings in JSON are not secrets. Every rule starts with literals that nearly no file contains, so
that most files cost a few substring searches. A finding never repeats the value that it found.
"""

from __future__ import annotations

import codecs
import fnmatch
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

SECRET_NAMES = (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "_netrc", ".pgpass", ".pypirc", ".npmrc", ".boto", ".s3cfg",
    ".git-credentials", ".dockercfg", ".dockerconfigjson", ".htpasswd", ".vault-token",
    ".aws", ".azure", ".docker", ".gcloud", ".gnupg", ".huggingface", ".kube", ".ssh", ".secrets", ".secrets.*",
    "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.ppk", "*.kdbx", "*.ovpn",
    "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*",
    "kubeconfig", "kubeconfig.yaml", "kubeconfig.yml", "*.kubeconfig", "*.tfstate", "*.tfstate.*", "terraform.tfvars",
    "*.auto.tfvars",
    "secret.yaml", "secret.yml", "secret.json", "secret.toml", "secrets.yaml", "secrets.yml", "secrets.json",
    "secrets.toml", "secrets.ini", "kaggle.json", "credentials.json", "credentials.db", "access_tokens.db",
    "legacy_credentials", "application_default_credentials.json", "client_secret*.json", "*service-account*.json",
    "*service_account*.json", "*access-key*.json", "*access_key*.json",
)  # fmt: skip
# Committed on purpose, to show which variables a project reads. Their content is checked as that of any file.
TEMPLATES = (".env.example", ".env.sample", ".env.template", ".env.dist", "*.env.example", "*.env.sample")
LARGEST_SCANNED = 8 << 20  # of one file: a larger one holds data, and only its beginning is read


@dataclass(frozen=True, slots=True)
class Finding:
    """One credential in a file: what it looks like, and its line."""

    kind: str
    line: int


@dataclass(frozen=True, slots=True)
class _Rule:
    kind: str
    literals: tuple[bytes, ...]  # the content contains one of them, or the rule does not match
    pattern: re.Pattern[bytes]


def _rule(kind: str, literals: str, pattern: str, flags: int = 0) -> _Rule:
    return _Rule(kind, tuple(word.encode() for word in literals.split("|")), re.compile(pattern.encode(), flags))


_START, _END = r"(?<![A-Za-z0-9_+/-])", r"(?![A-Za-z0-9_+/-])"
_NAMED = r"""["'\]]{0,2}\s{0,8}(?:[:=,(]|=>)\s{0,8}["']?"""  # between a name and its value: `: "`, `=`, `",`
_RULES = (
    _rule("a private key", "PRIVATE KEY", (
        r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY(?: BLOCK)?-----"
        r"""(?:[\s"'+,\\]|\\[nr]|(?:Proc-Type|DEK-Info|Version|Comment|Hash): [^\n]*)*[A-Za-z0-9+/=]{24,}""")),
    _rule("a private key", "PuTTY-User-Key-File", r"PuTTY-User-Key-File-\d: [^\0]{0,4000}?Private-Lines: \d"),
    _rule("a private key", "LS0tLS1CRUdJTi", (  # the same in base64, as in a kubeconfig
        r"LS0tLS1CRUdJTi(?:BSU0EgUFJJVkFURSBLRVkt|BQUklWQVRFIEtFWS0t|BFQyBQUklWQVRFIEtFWS0t|"
        r"BPUEVOU1NIIFBSSVZBVEUgS0VZ|BFTkNSWVBURUQgUFJJVkFURSBLRVkt)")),
    _rule("a Google service account's key", "private_key_id", r""""private_key_id"\s*:\s*"[0-9a-f]{40}\""""),
    _rule("a Google access token", "ya29.", rf"{_START}ya29\.[A-Za-z0-9_-]{{30,}}"),
    _rule("a Google refresh token", "1//0", rf"{_START}1//0[A-Za-z0-9_-]{{40,}}{_END}"),
    _rule("a Google client secret", "GOCSPX-", rf"{_START}GOCSPX-[A-Za-z0-9_-]{{28}}{_END}"),
    _rule("a Google API key", "AIza", rf"{_START}AIza[0-9A-Za-z_-]{{35}}{_END}"),
    _rule("an AWS access key", "AKIA|ASIA", rf"{_START}A(?:KIA|SIA)(?=[A-Z]*[2-7])[A-Z2-7]{{16}}{_END}"),
    _rule("an AWS secret key", "aws_secret|AWS_SECRET|wsSecret", (
        rf"(?i:aws_?secret_?(?:access_?)?key){_NAMED}(?=[A-Za-z/+]*[0-9])[A-Za-z0-9/+]{{40}}{_END}")),
    _rule("an AWS session token", "aws_session|AWS_SESSION|wsSession", (
        rf"(?i:aws_?session_?token){_NAMED}[A-Za-z0-9/+=]{{100,}}")),
    _rule("an Azure storage key", "AccountKey=", r"AccountKey=[A-Za-z0-9+/]{86}=="),
    _rule("an Azure shared access signature", "sig=", r"[?&]sv=20[0-9-]+&[^\s\"']{0,300}?sig=[A-Za-z0-9%+/]{40,}"),
    _rule("a GitHub token", "ghp_|gho_|ghs_|ghu_|ghr_", rf"{_START}gh[pousr]_[A-Za-z0-9]{{36,}}{_END}"),
    _rule("a GitHub token", "github_pat_", rf"{_START}github_pat_[A-Za-z0-9]{{22}}_[A-Za-z0-9]{{50,}}"),
    _rule("a GitLab token", "glpat-", rf"{_START}glpat-[A-Za-z0-9_-]{{20,}}"),
    _rule("a Hugging Face token", "hf_", rf"{_START}hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{{34,40}}{_END}"),
    _rule("a Hugging Face token", "api_org_", rf"{_START}api_org_[A-Za-z0-9]{{34}}{_END}"),
    _rule("a W&B API key", "wandb_v1_", rf"{_START}wandb_v1_[A-Za-z0-9_]{{60,}}"),
    _rule("a W&B API key", "andb|ANDB", (
        rf"(?i:wandb\.login\(\s*key\s*=\s*[\"']|wandb[\w.-]{{0,20}}?(?:key|token){_NAMED})[0-9a-f]{{40}}{_END}")),
    _rule("a W&B API key", "andb:|andb\":", (
        rf"(?i:wandb)[\"']?\s*:[^#\0]{{0,200}}?(?i:api_?key){_NAMED}[0-9a-f]{{40}}{_END}")),
    _rule("a Slack token", "xox", rf"{_START}xox[abeoprs]-[0-9]{{6,}}-[0-9A-Za-z-]{{20,}}"),
    _rule("a Slack webhook", "hooks.slack.com", (
        r"hooks\.slack\.com/(?:services|workflows)/T[A-Z0-9]{8,}/[A-Z0-9]{8,}/\w{20,}")),
    _rule("a Discord webhook", "/api/webhooks/", r"discord(?:app)?\.com/api/webhooks/\d{17,20}/[\w-]{60,}"),
    _rule("an Anthropic API key", "sk-ant-", rf"{_START}sk-ant-[a-z0-9]+-[A-Za-z0-9_-]{{60,}}"),
    _rule("an OpenAI API key", "sk-", (
        rf"{_START}sk-(?:(?:proj|svcacct|admin|None)-[A-Za-z0-9_-]{{40,}}|(?=[A-Za-z]*[0-9])[A-Za-z0-9]{{48}}{_END})")),
    _rule("a Stripe key", "k_live_", rf"{_START}[sr]k_live_[A-Za-z0-9]{{24,}}"),
    _rule("a SendGrid key", "SG.", rf"{_START}SG\.[\w-]{{22}}\.[\w-]{{43}}{_END}"),
    _rule("a Databricks token", "dapi", rf"{_START}dapi[0-9a-f]{{32}}(?:-\d)?{_END}"),
    _rule("an npm token", "npm_", rf"{_START}npm_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{{36}}{_END}"),
    _rule("an npm token", "_authToken=", r"//[\w./:-]+:_authToken=[\w-]{20,}"),
    _rule("a PyPI token", "pypi-AgE", rf"{_START}pypi-AgE[A-Za-z0-9_-]{{50,}}"),
    _rule("a JSON Web Token", "eyJ", (
        rf"{_START}eyJ[A-Za-z0-9_-]{{14,}}\.eyJ[A-Za-z0-9_-]{{10,}}\.[A-Za-z0-9_-]{{20,}}")),
    _rule("a password of .netrc", "machine ", (
        r"machine\s+\S+\s+login\s+\S+\s+password\s+(?=[!-~]*[0-9])[!-~]{8,}")),
    _rule("a password in a URL", "://", (
        r"://[\w.%-]{1,64}:(?=[^\s/@]*[0-9])(?=[^\s/@]*[A-Za-z])[A-Za-z0-9_.~%!*-]{16,}@[\w-]+[\w.:-]*")),
    _rule("registry passwords of Docker", '"auths"', (
        r'"auths"\s*:\s*\{[^\0]{0,4000}?"(?:auth|identitytoken)"\s*:\s*"[\w+/=.-]{12,}"')),
    _rule("a kubeconfig's token", "kind: Config", (
        r"(?m)^kind: Config\s[^\0]{0,60000}?^\s+token: [\"']?[\w.~+/=-]{16,}")),
    _rule("a kubeconfig's token", "kind: Config", (
        r"(?m)^\s+token: [\"']?[\w.~+/=-]{16,}[^\0]{0,60000}?^kind: Config\s")),
    _rule("a Terraform state", '"terraform_version"', (
        r'"terraform_version"\s*:[^\0]{0,400}?"lineage"\s*:\s*"[0-9a-f-]{36}"')),
    _rule("credentials of gcloud", "SQLite format 3", (
        r"\ASQLite format 3\0[^\xff]{0,8000}?CREATE TABLE [\"']?(?:credentials|access_tokens)[\"' (]"), re.DOTALL),
    _rule("an API key of Kaggle", '"username"', r'\{\s*"username"\s*:\s*"[^"]+"\s*,\s*"key"\s*:\s*"[0-9a-f]{32}"'),
)  # fmt: skip
_PLACEHOLDER = re.compile(rb"(?i)example|x{5}|placeholder|changeme|your[_-]|0{8}|123456789|<[^>]*>|\$\{|\*{4}|\.\.\.")
# The key that Microsoft publishes for its storage emulator.
_PUBLIC_VALUES = (b"Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq",)


def looks_secret_by_name(name: str) -> bool:
    """Return whether a file or folder of this name (without its folder) usually holds credentials, in any case."""
    lower = name.lower()
    return _names(SECRET_NAMES).match(lower) is not None and _names(TEMPLATES).match(lower) is None


def find_secrets(body: bytes) -> list[Finding]:
    """Return the credentials in a file's content, by line. Cost: about 30 substring searches if there are none."""
    text = _as_ascii(body[:LARGEST_SCANNED])
    found = {(text.count(b"\n", 0, start) + 1, rule.kind) for rule in _RULES for start in _matches(rule, text)}
    return [Finding(kind, line) for line, kind in sorted(found)]


def _matches(rule: _Rule, text: bytes) -> Iterator[int]:
    if any(literal in text for literal in rule.literals):
        for match in rule.pattern.finditer(text):
            if not _is_placeholder(match[0]):
                yield match.start()


def _is_placeholder(value: bytes) -> bool:
    tail = value[-40:]
    return bool(
        _PLACEHOLDER.search(tail) or len(set(tail[-16:])) < 6 or any(public in value for public in _PUBLIC_VALUES)
    )


def _as_ascii(body: bytes) -> bytes:
    """Decode UTF-16, which PowerShell writes by default; everything else is searched as it is."""
    if body.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return body.decode("utf-16", "replace").encode()
    return body


@lru_cache(maxsize=4)
def _names(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(fnmatch.translate, patterns)))
