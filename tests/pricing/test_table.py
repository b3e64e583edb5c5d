"""The price table: figures with a date, found quickly, replaced by a newer file and by nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.core.errors import BadInput
from headway.pricing.table import ACCELERATOR, COLUMNS, MACHINE, Price, load, parse, update

NEWER = (
    f"# My cloud, USD an hour, 2999-01-01\n{COLUMNS}\n"
    "accelerator,T4,1,,,mars1,9.5,\nmachine,m1,1,8.0,30.0,mars1,0.5,0.1\n"
)


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADWAY_HOME", str(tmp_path / "home"))


def test_the_shipped_table_has_a_date_and_prices_of_both_kinds() -> None:
    table = load()
    assert table.dated == "2026-08-21"
    assert table.price(MACHINE, "n1-standard-8", "us-east1") == Price(0.38, 0.17836)
    assert table.price(ACCELERATOR, "T4", "us-east1") == Price(0.35, 0.1905)


def test_every_row_of_the_shipped_table_can_be_read() -> None:
    table = load()
    rows = [row for kind in (MACHINE, ACCELERATOR) for name in table.names(kind) for row in table.rows(kind, name)]
    assert len(rows) == len(table.text.splitlines()) - 2
    assert all(row.price.usd > 0 for row in rows)


def test_a_name_is_not_found_by_its_beginning() -> None:
    assert {row.name for row in load().rows(MACHINE, "n1-standard-1")} == {"n1-standard-1"}
    assert load().rows(ACCELERATOR, "A100")[0].name == "A100"


def test_several_accelerators_have_their_own_row_or_cost_a_multiple() -> None:
    table = load()
    assert table.price(ACCELERATOR, "T4", "us-east1", 4) == Price(1.4, 0.762)
    three = table.price(ACCELERATOR, "T4", "us-east1", 3)
    assert three is not None
    assert three.usd == pytest.approx(1.05)


def test_what_is_not_offered_has_no_price() -> None:
    assert load().price(ACCELERATOR, "T4", "moon-base1") is None
    assert load().price(MACHINE, "n9-standard-8", "us-east1") is None


def test_a_newer_table_from_a_file_takes_its_place(tmp_path: Path) -> None:
    (tmp_path / "new.csv").write_text(NEWER)
    assert update(tmp_path / "new.csv").source == "My cloud"
    assert load().dated == "2999-01-01"
    assert load().price(ACCELERATOR, "T4", "mars1") == Price(9.5, 9.5)


def test_an_older_table_does_not_hide_the_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text(NEWER.replace("2999", "2001"))
    update(tmp_path / "old.csv")
    assert load().dated == "2026-08-21"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not a price table"),
        ("a,b\n1,2\n", "not a price table"),
        (NEWER.replace("2999-01-01", "today"), "not a price table"),
        (NEWER + "accelerator,T4,1\n", ":5: not a price"),
        (NEWER + "planet,T4,1,,,mars1,9.5,9\n", "planet"),
        (NEWER + "machine,m2,1,,,mars1,cheap,9\n", "cheap"),
        (NEWER + "machine,m2,1,,,mars1,-3,9\n", "-3"),
        (NEWER + "machine,m2,1,,,mars1,nan,9\n", "nan"),
    ],
)
def test_a_table_with_a_fault_is_refused_and_the_old_one_stays(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "bad.csv").write_text(text)
    with pytest.raises(BadInput, match=reason):
        update(tmp_path / "bad.csv")
    assert load().dated == "2026-08-21"


def test_a_table_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be read"):
        update(tmp_path / "missing.csv")
    with pytest.raises(BadInput, match="not a price table"):
        parse("x")
