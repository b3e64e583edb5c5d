"""No form of a secret that programs commonly print is left in output, and nothing else is taken out of it."""

from __future__ import annotations

import base64
import html
import json
import pprint
import re
import textwrap
import time
import urllib.parse
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.storage.redaction import Redactor, ambient_values, redact
from headway.supervisor.log_pipeline import Spool

TOKEN = "s3cr3t/Väl+ue'with\"all&kinds<of>%chars 0123456789"
LINES = [base64.b64encode(bytes([n] * 48)).decode() for n in range(40, 46)]
PEM = "\n".join(["-----BEGIN PRIVATE " + "KEY-----", *LINES, "-----END PRIVATE KEY-----", ""])
ACCOUNT = {"type": "service_account", "project_id": "my-project", "private_key_id": "0a1b2c3d4e5f" * 3,
           "private_key": PEM, "client_email": "me@my-project.iam.gserviceaccount.com",
           "token_uri": "https://oauth2.googleapis.com/token"}  # fmt: skip

FORMS = {
    "as it is": TOKEN,
    "JSON": json.dumps(TOKEN),
    "JSON with its own letters": json.dumps(TOKEN, ensure_ascii=False),
    "JSON in JSON": json.dumps(json.dumps(TOKEN)),
    "repr": repr(TOKEN),
    "repr in a list": repr([TOKEN]),
    "repr with double quotes": repr(TOKEN.replace('"', "")),
    "repr of bytes": repr(TOKEN.encode()),
    "repr in JSON": json.dumps(repr(TOKEN)),
    "ascii": ascii(TOKEN),
    "URL": urllib.parse.quote(TOKEN),
    "URL, all": urllib.parse.quote(TOKEN, safe=""),
    "URL, lower": re.sub("%..", lambda code: code[0].lower(), urllib.parse.quote(TOKEN, safe="")),
    "form": urllib.parse.urlencode({"password": TOKEN}),
    "XML": html.escape(TOKEN),
    "XML text": html.escape(TOKEN, quote=False),
    "HTML of templates": html.escape(TOKEN).replace("&#x27;", "&#39;").replace("&quot;", "&#34;"),
    "hexadecimal": TOKEN.encode().hex(),
    "HEXADECIMAL": TOKEN.encode().hex().upper(),
    "base64": base64.b64encode(TOKEN.encode()).decode(),
    "base64 for URLs": base64.urlsafe_b64encode(TOKEN.encode()).decode(),
    "Basic": "Authorization: Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode(),
    "Basic of another user": "Authorization: Basic " + base64.b64encode(f"user:{TOKEN}".encode()).decode(),
    "base64 of a record": base64.b64encode(json.dumps({"k": 1}).encode() + TOKEN.encode() + b"..").decode(),
}
# What must not be left: pieces of the value in any of these encodings.
PIECES = ("s3cr3t", "0123456789", "kinds", TOKEN[:8].encode().hex(), base64.b64encode(TOKEN[:9].encode()).decode())


@pytest.mark.parametrize("form", FORMS)
def test_a_value_is_hidden_in_every_form(form: str) -> None:
    values = [TOKEN, TOKEN.replace('"', "")]
    text = redact(f"before {FORMS[form]} after", values)
    assert "***" in text
    assert text.startswith("before ")
    assert text.endswith(" after")
    rest = text.replace("***", "").lower()
    assert not [piece for piece in PIECES if piece.lower() in rest]
    assert len(rest) < 60  # "Authorization: Basic" and single characters of the encoding's ends


@given(before=st.binary(max_size=40), after=st.binary(max_size=40), value=st.binary(min_size=12, max_size=60))
def test_a_value_is_hidden_in_base64_wherever_it_stands(before: bytes, after: bytes, value: bytes) -> None:
    secret = base64.b32encode(value).decode().rstrip("=")
    text = base64.b64encode(before + secret.encode() + after).decode()
    core = base64.b64encode(b"\0" * (len(before) % 3) + secret.encode())[4:-4].decode()
    assert core not in redact(text, [secret])


def test_wrapped_base64_is_hidden() -> None:
    for width in (64, 76):
        text = "\n".join(textwrap.wrap(base64.b64encode(PEM.encode()).decode(), width))
        left = redact(text, [PEM]).replace("***", "").strip()
        assert len(left) <= 16, left


def test_the_secret_fields_of_a_document_are_hidden_alone_and_the_others_are_not() -> None:
    for value in (json.dumps(ACCOUNT), json.dumps(ACCOUNT, indent=2)):
        hide = Redactor([value])
        assert hide(PEM.encode()) == b"***"
        printed = pprint.pformat(ACCOUNT)
        left = hide(printed.encode()).decode()
        assert not [line for line in [*LINES, ACCOUNT["private_key_id"]] if line in left]
        assert "my-project.iam" in left
        assert hide(b"https://oauth2.googleapis.com/token my-project service_account") == (
            b"https://oauth2.googleapis.com/token my-project service_account"
        )


@pytest.mark.parametrize("document", [
    "[default]\nregion = us-east-1\naws_secret_access_key = abcdEFGH1234/+ijklMNOP5678qrstUVWX90\n",
    "machine api.wandb.ai login user password abcdEFGH1234/+ijklMNOP5678qrstUVWX90",
    "Endpoint=x;AccountKey=abcdEFGH1234/+ijklMNOP5678qrstUVWX90;More=1",
    "postgresql://me:abcdEFGH1234%2F+ijklMNOP5678qrstUVWX90@host/db",
])  # fmt: skip
def test_passwords_inside_a_file_are_hidden(document: str) -> None:
    assert redact("key abcdEFGH1234/+ijklMNOP5678qrstUVWX90.", [document]) == "key ***."


def test_a_value_that_is_broken_over_lines_is_hidden() -> None:
    value = "abcdefghij" * 30 + "0123456789klmnopqrst"
    for width in (40, 79, 200):
        text = "\n".join(textwrap.wrap("token " + value + " end", width))
        assert redact(text, [value]).replace("\n", " ") == "token *** end"
    assert redact("('abcdefghij0123'\n '456789klmnopqrst')", ["abcdefghij0123456789klmnopqrst"]) == "('***')"


@given(cuts=st.lists(st.integers(1, 130), min_size=1, max_size=6))
def test_a_value_is_hidden_however_it_is_cut_over_writes_and_lines(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int]
) -> None:
    value = "tok-0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    text = f"one\n{value[:30]}\n  {value[30:]} two {value}\n".encode()
    spool = Spool(tmp_path_factory.mktemp("spool"), 1, "r0", redact=Redactor([value]))
    places = [0, *sorted(cuts), len(text)]
    shown = b"".join(spool.append(text[start:end]) for start, end in pairwise(places))
    shown += spool.finish()
    spool.close()
    assert shown == b"one\n*** two ***\n"


def test_a_line_that_is_held_back_is_written_at_the_next_tick(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1, "r0", redact=Redactor(["abcdefghijklmnopqrstuvwxyz"]))
    assert spool.append(b"first\nabcdefgh\n") == b"first\n"
    assert spool.tick() == b"abcdefgh\n"
    spool.close()


def test_ordinary_output_stays_as_it_is() -> None:
    text = (Path(__file__).parents[2] / "docs" / "job-file.md").read_bytes()
    hide = Redactor([TOKEN, PEM, json.dumps(ACCOUNT), "hunter2"])
    assert hide(text) == text
    assert Redactor()(text) is text


def test_credentials_of_the_environment_are_known(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("[a]\naws_secret_access_key = file-of-aws-0123456789\n")
    (tmp_path / ".cache/huggingface").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/token").write_text("token-of-hugging-face\n")
    (tmp_path / ".netrc").write_text("machine api.wandb.ai\n login user\n password key-of-wandb-0123456789\n")
    (tmp_path / "key.json").write_text(json.dumps(ACCOUNT))
    named = {name: f"value-of-{name.lower()}" for name in (
        "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AZURE_CLIENT_SECRET", "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_CONNECTION_STRING", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN",
        "WANDB_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "COMET_API_KEY")}  # fmt: skip
    env = {"HOME": str(tmp_path), "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"), **named}
    values = ambient_values(env)
    wanted = {*named.values(), "file-of-aws-0123456789", "token-of-hugging-face", "key-of-wandb-0123456789",
              ACCOUNT["private_key_id"], PEM}  # fmt: skip
    assert wanted <= set(values)


def test_words_in_the_environment_are_no_credentials(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path), "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "minioadmin", "SSH_KEY": "/a/b",
           "TOKENIZERS_PARALLELISM": "false and some more", "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/token",
           "PATH": "/usr/bin:/usr/local/bin"}  # fmt: skip
    assert ambient_values(env) == []


def test_output_without_a_secret_costs_little() -> None:
    line = b"epoch 3 step 1234 loss 0.1234567 lr 1.000e-04 https://host/x tokens/s 12345.6\n"
    hide, text = Redactor([TOKEN, json.dumps(ACCOUNT)]), line * 800
    started = time.process_time()
    for _ in range(50):
        assert hide(text) is text
    assert (time.process_time() - started) / 50 < 0.02  # 64 kB; 0.7 ms measured
