"""What the settings become on vLLM's command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster import engine
from cluster.model import build
from cluster.served import OWN_MODEL_KV_BYTES
from cluster.settings import Settings


def options(settings: Settings) -> dict[str, str]:
    return dict(one.removeprefix("--").partition("=")[::2] for one in engine.arguments(settings))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path


def test_small_model_is_built_and_served_by_default(cache: Path) -> None:
    found = options(Settings(cache_dir=cache))
    assert build.is_whole(Path(found["model"]))
    assert found["served-model-name"] == "brownout-tiny"
    assert found["kv-cache-memory-bytes"] == str(48 * 1024 * 1024)
    assert found["max-num-seqs"] == "8"
    assert found["dtype"] == "float32"
    assert "enable-prefix-caching" in found


def test_pace_reaches_the_worker(cache: Path) -> None:
    found = options(Settings(cache_dir=cache, pace_base_s=0.05, pace_per_token_s=0.001))
    assert found["worker-cls"] == "cluster.paced_worker.PacedWorker"
    assert json.loads(found["additional-config"]) == {"brownout_pace": {"base_s": 0.05, "per_token_s": 0.001}}


def test_without_pace_the_engine_is_as_vllm_makes_it(cache: Path) -> None:
    found = options(Settings(cache_dir=cache, pace="off"))
    assert not {"worker-cls", "additional-config"} & found.keys()


def test_own_model_is_one_setting_away(cache: Path) -> None:
    found = options(Settings(cache_dir=cache, model="org/some-model"))
    assert found["model"] == "org/some-model"
    assert "dtype" not in found
    assert found["kv-cache-memory-bytes"] == str(OWN_MODEL_KV_BYTES)
    assert list(cache.iterdir()) == [], "the small model was built although another is configured"


def test_own_model_keeps_the_cache_size_that_was_asked_for(cache: Path) -> None:
    found = options(Settings(cache_dir=cache, model="org/some-model", kv_cache_bytes=64 * 1024 * 1024))
    assert found["kv-cache-memory-bytes"] == str(64 * 1024 * 1024)
