"""Settings: presets, files, overrides and errors that name the remedy."""

from __future__ import annotations

import pytest

from deltamask.config import PRESETS, Config, load, settings
from deltamask.errors import ConfigError


def test_later_sources_win_and_a_preset_comes_right_after_the_defaults(tmp_path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('rounds = 7\npreset = "paper"\n[channel]\ncodec = "xor8"\n')
    config = load(file, ["rounds=9"])
    assert (config.rounds, config.channel.codec, config.channel.image) == (9, "xor8", "png")
    assert config.channel.sampling == "independent"
    assert load(overrides=["preset=exact"]) == Config()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_loads(preset) -> None:
    config = load(values={"preset": preset})
    for key, value in PRESETS[preset].items():
        section, _, name = key.partition(".")
        assert getattr(getattr(config, section), name) == value


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("round=5", "did you mean 'rounds'"),
        ("channel.codecs=rice", "did you mean 'channel.codec'"),
        ("kappa=0.5", "did you mean 'channel.kappa'"),
        ("rounds", "expected key=value"),
        ("rounds=-1", "rounds is -1"),
        ("participation=1.5", "participation is 1.5"),
        ("channel.sampling=often", "channel.sampling is 'often'"),
        ("theta0=1", "theta0 is 1"),
        ("preset=exat", "did you mean 'exact'"),
        ("train.lr=nan", "train.lr is nan"),
    ],
)
def test_errors_name_the_remedy(override, message) -> None:
    with pytest.raises(ConfigError, match=message):
        load(overrides=[override])


def test_files_that_are_missing_or_no_toml(tmp_path) -> None:
    with pytest.raises(ConfigError, match="no file"):
        load(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("rounds = = 3")
    with pytest.raises(ConfigError, match=r"bad\.toml"):
        load(tmp_path / "bad.toml")
    (tmp_path / "bin.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"bin\.toml"):
        load(tmp_path / "bin.toml")


def test_every_setting_is_described_and_the_digest_sees_each() -> None:
    rows = list(settings())
    assert all(text for _, _, text in rows)
    keys = [key for key, _, _ in rows]
    for key in ("rounds", "clients", "participation", "seed", "method", "model", "dataset", "partition"):
        assert key in keys
    assert load(overrides=["channel.kappa=0.5"]).digest() != Config().digest() == load().digest()
