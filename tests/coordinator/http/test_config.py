"""The coordinator's settings: the file, the flags over it, and what is refused with which words."""

from pathlib import Path

import pytest

from kernpool_coordinator.config import FIELDS, Address, ConfigError, describe, load


def _file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "coordinator.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_flags_win_over_the_file_and_the_file_over_the_defaults(tmp_path: Path) -> None:
    """An administrator tries another port without editing the file."""
    path = _file(tmp_path, 'api_listen = "127.0.0.1:1"\nstreams_max = 7\n')
    settings = load(path, {"api_listen": "127.0.0.1:2"})
    assert (settings.api_listen, settings.streams_max, settings.node_listen) == ("127.0.0.1:2", 7, "127.0.0.1:46581")


def test_an_unknown_key_is_refused_with_a_near_match(tmp_path: Path) -> None:
    """A typo in the file must not silently leave the default in force."""
    with pytest.raises(ConfigError, match=r"unknown setting `api_lisen`; did you mean `api_listen`\?"):
        load(_file(tmp_path, 'api_lisen = "127.0.0.1:1"'), {})


def test_an_unknown_key_without_a_near_match_says_where_the_list_is(tmp_path: Path) -> None:
    """Someone pastes a key of another program."""
    with pytest.raises(ConfigError, match="kp-coordinator --settings"):
        load(_file(tmp_path, "zzz = 1"), {})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('streams_max = "many"', "`streams_max` is 'many', expected a whole number"),
        ("streams_max = true", "`streams_max` is True, expected a whole number"),
        ("streams_max = 0", "`streams_max` is 0, expected 1 to 100000 requests"),
        ("api_listen = 46580", "`api_listen` is 46580, expected a string"),
        ('server_names = "a"', "`server_names` is 'a', expected a list of strings"),
        ('log_level = "loud"', "`log_level` is `loud`, expected one of debug, info, warning, error"),
        ("streams_max = ", "is not valid TOML"),
    ],
)
def test_a_wrong_value_is_refused_with_what_was_expected(tmp_path: Path, text: str, words: str) -> None:
    """The administrator sees the key, the value and what is allowed, before anything is started."""
    with pytest.raises(ConfigError) as caught:
        load(_file(tmp_path, text), {})
    assert words in str(caught.value)


def test_a_whole_number_stands_for_a_float(tmp_path: Path) -> None:
    """TOML has two kinds of numbers; people write 30 for 30.0."""
    assert load(_file(tmp_path, "body_wait_s = 30"), {}).body_wait_s == 30.0


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """--config points to nowhere."""
    with pytest.raises(ConfigError, match=r"Cannot read the configuration .*none\.toml"):
        load(str(tmp_path / "none.toml"), {})


def test_a_file_that_is_no_utf8_is_refused(tmp_path: Path) -> None:
    """A binary file given by mistake."""
    path = tmp_path / "x.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(str(path), {})


@pytest.mark.parametrize("text", ["", "46580", ":1", "host:", "host:x", "127.0.0.1:70000", "127.0.0.1"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    """The sentence names the setting."""
    with pytest.raises(ConfigError, match="`api_listen`"):
        Address.parse(text, key="api_listen")


@pytest.mark.parametrize(
    ("text", "loopback"),
    [
        ("127.0.0.1:1", True),
        ("127.8.0.1:1", True),
        ("[::1]:1", True),
        ("0.0.0.0:1", False),
        ("[::]:1", False),
        ("10.0.0.1:1", False),
    ],
)
def test_loopback_is_known_by_the_address(text: str, loopback: bool) -> None:
    """Plain HTTP depends on it."""
    address = Address.parse(text, key="api_listen")
    assert address.loopback is loopback
    assert str(address) == text


def test_every_setting_has_a_reason_and_its_default_lies_within_its_bounds() -> None:
    """The table is what `--settings` prints and what the docs are made from."""
    text = describe()
    for name, entry in FIELDS.items():
        assert entry.metadata["why"]
        assert f"{name} = " in text
        low, high = entry.metadata["low"], entry.metadata["high"]
        assert low is None or low <= entry.default <= high, name
