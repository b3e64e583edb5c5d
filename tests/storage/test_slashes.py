"""A URL whose slashes are missing is refused with the URL that was meant: it would silently be a local folder."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from headway import storage as opening
from headway.cli import main
from headway.core.errors import BAD_INPUT, BadInput, BadJob
from headway.plugins import STORES
from headway.spec import loads
from headway.spec.constraints import FORMS, matches
from headway.storage import local_path, open_store, suggest_url

MEANT = {
    "gs:/bucket": "gs://bucket",
    "gs:bucket/runs": "gs://bucket/runs",
    "gs:": "gs://bucket",
    "s3:/bucket/a b": "s3://bucket/a b",
    "az:/account/container": "az://account/container",
    "file:/data/x": "file:///data/x",
    "file:data": "file:///data",
    "memory:/x": "memory://x",
    "http:/host/x": "http://host/x",
    "https:host": "https://host",
    "gcs:/bucket": "gs://bucket",
    "abfss:/c/x": "az://c/x",
}
FINE = ["runs", "./gs:/bucket", "/gs:/x", "a/gs:/x", "~/gs:", "gsx:/y", "my:folder", "gs", "nfs-server:/export"]
JOB = "name: job\nrecipe: captioning\n"


@pytest.mark.parametrize(("typed", "meant"), MEANT.items())
def test_a_store_names_the_url_that_was_meant(typed: str, meant: str) -> None:
    assert suggest_url(typed) == meant
    for use in (open_store, local_path):
        with pytest.raises(BadInput, match="neither a URL nor a folder") as refusal:
            use(typed)
        assert meant in str(refusal.value)
        assert f"./{typed}" in str(refusal.value)


@pytest.mark.parametrize("typed", FINE)
def test_a_folder_may_have_a_colon_in_its_name(typed: str) -> None:
    assert suggest_url(typed) is None
    assert matches("location", typed)
    assert matches("source", typed)
    assert local_path(typed) == Path(typed).expanduser().absolute()


@pytest.mark.parametrize("url", ["gs://b", "s3://b/x", "az://c/x", "file:///x", "memory://x", "http://x"])
def test_a_whole_url_is_nothing_to_mend(url: str) -> None:
    assert suggest_url(url) is None


@pytest.mark.parametrize(
    ("lines", "place"),
    [
        ("outputs: {}", "job:3:10"),
        ("export: {{to: {}}}", "job:3:14"),
        ("init_from: {}", "job:3:12"),
        ("cache: {{dir: {}}}", "job:3:14"),
        ("data:\n  train:\n    - source: {}", "job:5:15"),
        ("data: {{val: [{{source: {}}}]}}", "job:3:23"),
    ],
)
@pytest.mark.parametrize("typed", ["gs:/bucket", "s3:bucket", "az:/c/x", "file:/data", "https:/host/x"])
def test_a_job_file_is_refused_at_line_and_column(lines: str, place: str, typed: str) -> None:
    with pytest.raises(BadJob) as refusal:
        loads(JOB + lines.format(typed))
    (problem,) = refusal.value.problems
    assert problem.where == place
    assert typed in problem.what
    meant = "/data/cache" if "cache" in lines else suggest_url(typed)
    assert meant
    assert meant in problem.fix


def test_an_override_is_refused_too() -> None:
    with pytest.raises(BadJob, match="gs://bucket/x"):
        loads(JOB, set=["outputs=gs:/bucket/x"])
    with pytest.raises(BadJob, match="s3://b"):
        loads(JOB + "outputs: ${env:WHERE}\n", env={"WHERE": "s3:/b"})


def test_what_may_be_left_empty_may_be_so_still() -> None:
    job = loads(JOB + "init_from: ${env:NONE}\ncache: {dir: '${env:NONE}'}\n", env={"NONE": ""})
    assert (job.init_from, job.cache.dir) == ("", "")


@pytest.mark.parametrize("form", ["location", "source", "weights", "local folder"])
@pytest.mark.parametrize("typed", MEANT)
def test_the_published_schema_refuses_the_same(form: str, typed: str) -> None:
    assert form in FORMS
    assert not matches(form, typed)


@pytest.mark.parametrize("scheme", sorted({*STORES.built_in, *opening._SCHEME_ALIASES, *opening._WEB_SCHEMES} - {""}))
def test_a_job_file_knows_every_scheme_that_stores_know(scheme: str) -> None:
    assert suggest_url(f"{scheme}:/x") is not None
    assert not matches("location", f"{scheme}:/x")


@pytest.mark.parametrize(
    "words",
    [
        ["status", "gs:/bucket/run"],
        ["logs", "s3:/bucket/run"],
        ["resume", "gs:bucket"],
        ["ps", "--rebuild", "gs:/bucket"],
        ["export", "gs:/bucket/run"],
        ["predict", "gs:/bucket/bundle", "x.png"],
        ["deploy", "gs:/bucket/bundle", "--to", "cloud-run", "--project", "p"],
        ["plan", "--set", "outputs=az:/c/runs"],
        pytest.param(
            ["ui", "gs:/bucket"], marks=pytest.mark.skipif(not find_spec("uvicorn"), reason="needs the serve extra")
        ),
        ["data", "verify", "gs:/bucket/x"],
        ["data", "inspect", "gs:/bucket/x"],
        ["data", "prepare", "gs:/bucket/x", "--to", "out"],
        ["data", "prepare", ".", "--to", "gs:/bucket/x"],
    ],
)
def test_the_command_line_names_the_url_that_was_meant(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    Path("headway.yaml").write_text(JOB)
    assert main(words) == BAD_INPUT
    said = capsys.readouterr().err
    assert "://" in said.partition("fix:")[2], said
    assert not [path for path in tmp_path.iterdir() if ":" in path.name]


def test_a_run_can_be_kept_in_a_folder_of_such_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))
    Path("train.py").write_text("print('trained')\n")
    Path("headway.yaml").write_text("name: job\nscript: train.py\noutputs: ./gs:/bucket\n")
    assert main(["run", "--name", "first", "--json"]) == 0, capsys.readouterr().err
    assert (tmp_path / "gs:/bucket/first/plan.json").is_file()
    capsys.readouterr()
    assert main(["status", "./gs:/bucket/first", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"
