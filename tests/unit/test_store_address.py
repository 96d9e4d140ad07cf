"""The setting ``store``: every form of it, what is wrong with the others, and no password in any text."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.gateway.store.address import parse_address
from cluster.settings import Settings, SettingsError, load

RUN = Path("/run/brownout")


def test_alone_the_name_means_a_file_in_the_run_folder():
    assert parse_address(Settings().store, RUN).path == RUN / "store.db"


def test_four_slashes_begin_a_whole_path_and_three_one_from_here():
    assert parse_address("sqlite:////var/lib/store.db", RUN).path == Path("/var/lib/store.db")
    assert parse_address("sqlite:///store.db", RUN).path == Path("store.db")


def test_both_names_of_the_scheme_of_postgresql_are_known():
    for scheme in ("postgres", "postgresql"):
        address = parse_address(f"{scheme}://me:secret@db:5432/brownout", RUN)
        assert address.kind == "postgresql"
        assert address.url == "postgresql://me:secret@db:5432/brownout"
        assert str(address) == "postgresql://me:***@db:5432/brownout"


def test_none_is_no_store():
    assert parse_address("none", RUN).kind == "none"


@pytest.mark.parametrize(
    ("value", "mend"),
    [
        ("", "is none of sqlite"),
        ("mysql://me:secret@db/brownout", "is none of sqlite"),
        ("sqlite://", "name a file"),
        ("sqlite:///", "name a file"),
        ("sqlite:///:memory:", "name a file"),
        ("sqlite:///store.db?mode=ro", "name a file"),
        ("postgresql://me:secret@db:5432", "has no database"),
        ("postgresql://me:secret@db:5432/", "has no database"),
        ("postgresql:///brownout", "has no host"),
        ("postgresql://me:secret@db:port/brownout", "host or port"),
        ("postgresql://me:sec/ret@db:5432/brownout", "%2F"),
        ("postgresql://me:sec#ret@db:5432/brownout", "%23"),
    ],
)
def test_what_cannot_be_used_says_so_and_tells_no_password(value: str, mend: str):
    with pytest.raises(SettingsError) as error:
        load({"BROWNOUT_STORE": value})
    text = str(error.value)
    assert text.startswith("BROWNOUT_STORE: field 'store'")
    assert mend in text
    assert "secret" not in text
    assert "ret@" not in text
    assert "sec" not in str(error.value.__cause__)


def test_settings_that_are_printed_show_no_password():
    settings = load({"BROWNOUT_STORE": "postgresql://me:secret@db/brownout"})
    assert "secret" not in repr(settings)


def test_the_upstream_of_the_link_wants_a_port():
    assert load({"BROWNOUT_STORE_UPSTREAM": "postgres:5432"}).store_upstream == "postgres:5432"
    for bad in ("postgres", ":5432", "postgres:", "postgres:0", "postgres:99999"):
        with pytest.raises(SettingsError, match="HOST:PORT"):
            load({"BROWNOUT_STORE_UPSTREAM": bad})
