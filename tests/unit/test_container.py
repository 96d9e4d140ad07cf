"""What the containers of head and workers do before Ray takes over."""

from __future__ import annotations

import stat
import subprocess
import sys

import pytest

from cluster import container


def test_the_token_is_made_once_a_volume(tmp_path, monkeypatch):
    token = tmp_path / ".ray" / "auth_token"
    monkeypatch.setattr(container, "TOKEN_FILE", token)
    container._make_token()
    first = token.read_text()
    container._make_token()
    assert token.read_text() == first
    assert len(first) == 64
    assert stat.S_IMODE(token.stat().st_mode) & stat.S_IROTH, "Prometheus reads it as another user"


def test_waiting_ends_when_ray_has_ended():
    ray = subprocess.Popen([sys.executable, "-c", "raise SystemExit(5)"])
    ray.wait()
    with pytest.raises(container.ContainerError, match=r"ray ended with 5 while waiting for the head"):
        container._await("the head", lambda: False, ray)


def test_waiting_is_bounded(monkeypatch):
    monkeypatch.setattr(container, "HEAD_TIMEOUT_S", 0.0)
    with pytest.raises(container.ContainerError, match=r"the head: not after 0 s"):
        container._await("the head", lambda: False)


def test_waiting_returns_on_the_first_success():
    answers = iter([False, True])
    container._await("the head", lambda: next(answers))
    assert next(answers, "none left") == "none left"


def test_bad_settings_end_the_container_with_their_own_words(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(container, "RAY_TEMP_DIR", tmp_path / "ray")
    monkeypatch.setattr(container.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "argv", ["container", "worker"])

    def broken() -> None:
        raise container.SettingsError("BROWNOUT_REPLICAS: field 'replicas' has value '0'")

    monkeypatch.setattr(container, "current", broken)
    assert container.main() == 3
    assert "container worker: BROWNOUT_REPLICAS" in capsys.readouterr().err
