"""Settings come from one place, and what cannot be used is said."""

import argparse
from pathlib import Path

import pytest

from daemon.config import ConfigError, Settings, add_flags, default_data_dir, read_settings


def flags(*given: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return vars(parser.parse_args(given))


def test_a_flag_wins_over_the_environment_the_environment_over_the_file_the_file_over_the_default(
    tmp_path: Path,
) -> None:
    file = tmp_path / "lane.toml"
    file.write_text('slots = 2\nctx = 100\nlr = 0.01\nlearn = ["ada"]\n')
    environment = {"RIDEALONG_SLOTS": "3", "RIDEALONG_CTX": "200", "HOME": "/"}
    settings = read_settings(flags("--config", str(file), "--slots", "5"), environment)
    assert (settings.slots, settings.ctx, settings.lr, settings.learn) == (5, 200, 0.01, ("ada",))
    assert settings.port == Settings.model_fields["port"].default


def test_every_setting_is_a_flag_with_its_sentence() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    text = " ".join(parser.format_help().split())
    for name, field in Settings.model_fields.items():
        assert f"--{name.replace('_', '-')}" in text
        assert str(field.description) in text


def test_an_agent_that_learns_is_given_once_for_each() -> None:
    assert read_settings(flags("--learn", "ada", "--learn", "bob"), {}).learn == ("ada", "bob")
    assert read_settings(flags(), {"RIDEALONG_LEARN": "ada,bob"}).learn == ("ada", "bob")


def test_an_unknown_key_is_refused_and_the_known_ones_named(tmp_path: Path) -> None:
    file = tmp_path / "lane.toml"
    file.write_text("slotz = 2\n")
    with pytest.raises(ConfigError, match=r"'slotz'.*slots"):
        read_settings(flags("--config", str(file)), {})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (("--slots", "0"), "--slots '0'"),
        (("--slots", "many"), "--slots 'many'"),
        (("--host", "0.0.0.0"), "loopback only: give keys with --api-key-file FILE or RIDEALONG_API_KEY"),
        (("--host", "example.org"), "loopback"),
        (("--untrusted", "martians"), "--untrusted"),
        (("--config", "no-such-file.toml"), "no-such-file.toml"),
    ],
)
def test_a_value_that_is_not_allowed_is_named_with_what_is(given: tuple[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        read_settings(flags(*given), {})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "example.org"])
def test_with_keys_a_lane_may_listen_on_other_addresses_than_loopback(host: str) -> None:
    assert read_settings(flags("--host", host), {"RIDEALONG_API_KEY": "k" * 16}).host == host
    assert read_settings(flags("--host", host, "--api-key-file", "keys"), {}).host == host


def test_a_key_that_cannot_be_used_is_not_printed(tmp_path: Path) -> None:
    file = tmp_path / "lane.toml"
    file.write_text("api_key = 12345678901234567890\n")
    with pytest.raises(ConfigError, match="--api-key: ") as refused:
        read_settings(flags("--config", str(file)), {})
    assert "12345678901234567890" not in str(refused.value)


def test_the_data_directory_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / "ridealong"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_data_dir() == tmp_path / ".local" / "share" / "ridealong"
