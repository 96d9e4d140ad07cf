"""The small model: the same bytes everywhere, built once, and never loaded when damaged."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from cluster.model import ModelBuildError, build, ensure, ensure_text, tokenizer
from cluster.model.build import FULL_MODEL, SMALL_MODEL
from cluster.model.shape import SMALL, Architecture
from cluster.model.weights import normal, to_bfloat16


@pytest.fixture(scope="module")
def files() -> dict[str, bytes]:
    return build.contents()


@pytest.fixture(scope="module")
def trained(files: dict[str, bytes]) -> Tokenizer:
    return Tokenizer.from_str(files["tokenizer.json"].decode())


def test_bytes_are_those_that_are_pinned(files: dict[str, bytes]) -> None:
    assert build.digest(files) == build.MODEL_SHA256


def test_second_model_is_pinned_too_and_reads_text_in_the_same_way(files: dict[str, bytes]) -> None:
    small = build.contents(SMALL)
    assert build.digest(small) == build.SMALL_SHA256
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert small[name] == files[name]
    ours, theirs = (json.loads(one["config.json"]) for one in (small, files))
    assert ours["max_position_embeddings"] == theirs["max_position_embeddings"]
    assert len(small["model.safetensors"]) < len(files["model.safetensors"]) / 4


def test_both_models_live_side_by_side(tmp_path: Path) -> None:
    full, small = ensure(tmp_path), ensure(tmp_path, SMALL_MODEL)
    assert full.name == FULL_MODEL.folder != small.name
    assert build.is_whole(full)
    assert build.is_whole(small, build.SMALL_SHA256)
    assert not build.is_whole(small)


def test_text_alone_is_built_without_numpy(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['numpy'] = None\n"
        "from pathlib import Path; from cluster.model import ensure_text; print(ensure_text(Path(sys.argv[1])))"
    )
    ran = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True)
    folder = Path(ran.stdout.strip())
    assert build.is_whole(folder, build.TEXT_SHA256)
    assert "model.safetensors" not in {path.name for path in folder.iterdir()}


def test_text_is_taken_from_the_whole_model_where_that_is_there(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    whole = ensure(tmp_path)
    assert ensure_text(tmp_path) == whole
    assert build.contents(weights=False) == {
        name: data for name, data in files.items() if name != "model.safetensors"
    }


def test_cache_of_keys_and_values_is_as_large_as_the_engine_says() -> None:
    assert 48 * 1024 * 1024 // Architecture().kv_bytes_per_token == 12_288
    assert SMALL.kv_bytes_per_token == 1024


def test_another_process_builds_the_same_bytes(files: dict[str, bytes]) -> None:
    code = "from cluster.model import build; print(build.digest(build.contents()))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == build.digest(files)


def test_another_seed_gives_another_model(files: dict[str, bytes]) -> None:
    assert build.digest(build.contents(Architecture(seed="another"))) != build.digest(files)


def test_has_about_four_million_parameters() -> None:
    count = sum(int(np.prod(shape)) for shape in Architecture().shapes().values())
    assert 3.5e6 < count < 4.5e6


def test_weights_are_spread_as_asked() -> None:
    values = normal("seed", "tensor", 200_000, std=0.1)
    assert abs(float(values.mean())) < 0.001
    assert abs(float(values.std()) - 0.1) < 0.001
    assert len(np.unique(values[:1000])) > 500


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5], dtype=np.float32)
    assert np.frombuffer(to_bfloat16(values), dtype="<u2").tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC020]


def test_checkpoint_can_be_read_by_the_library_that_defines_the_format(files: dict[str, bytes]) -> None:
    safetensors = pytest.importorskip("safetensors")
    tensors = dict(safetensors.deserialize(files["model.safetensors"]))
    assert {name: tuple(one["shape"]) for name, one in tensors.items()} == Architecture().shapes()
    head = np.frombuffer(tensors["lm_head.weight"]["data"], dtype="<u2").reshape(2048, 256)
    silent = [row for row in range(2048) if not head[row].any()]
    assert silent == list(range(len(tokenizer.SPECIAL)))


def test_vocabulary_is_full(files: dict[str, bytes], trained: Tokenizer) -> None:
    assert trained.get_vocab_size() == json.loads(files["config.json"])["vocab_size"] == 2048


@pytest.mark.parametrize(
    "text",
    ["The gateway asked another replica.", "crème brûlée für €12.50", "東京 🙂 नमस्ते", "\x00\x7f\n\t x", ""],
)
def test_any_text_survives_the_tokenizer(trained: Tokenizer, text: str) -> None:
    assert trained.decode(trained.encode(text).ids, skip_special_tokens=False) == text


def test_training_text_is_read_in_fewer_tokens_than_bytes(trained: Tokenizer) -> None:
    text = tokenizer.training_text()
    assert len(trained.encode(text).ids) < len(text.encode()) / 3


def test_training_text_has_characters_of_several_bytes() -> None:
    assert {len(character.encode()) for character in tokenizer.training_text()} == {1, 2, 3, 4}


def test_first_start_builds_and_second_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ensure(tmp_path)
    assert build.is_whole(folder)
    assert folder.name == f"model-{build.MODEL_SHA256[:12]}"
    monkeypatch.setattr(build, "contents", lambda *_, **__: pytest.fail("built twice"))
    assert ensure(tmp_path) == folder


@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "extra"])
def test_damaged_cache_is_built_again(tmp_path: Path, damage: str) -> None:
    folder = ensure(tmp_path)
    weights = folder / "model.safetensors"
    data = weights.read_bytes()
    if damage == "truncated":
        weights.write_bytes(data[:-1])
    elif damage == "flipped":
        weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif damage == "missing":
        weights.unlink()
    else:
        (folder / "added_tokens.json").write_text("{}")
    assert not build.is_whole(folder)
    assert build.is_whole(ensure(tmp_path))


def test_builders_at_the_same_time_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Path] = []
    install = build._install

    def counted(files: dict[str, bytes], folder: Path, expected: str) -> None:
        installed.append(folder)
        install(files, folder, expected)

    monkeypatch.setattr(build, "_install", counted)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(ensure(tmp_path))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(installed) == 1
    assert len(set(found)) == 1
    assert len(found) == 4


def test_nothing_is_left_beside_the_model(tmp_path: Path) -> None:
    folder = ensure(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, f"{folder.name}.lock"}


def test_other_bytes_are_refused_and_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "contents", lambda *_, **__: {"config.json": b"{}"})
    with pytest.raises(ModelBuildError, match="install the pinned versions"):
        ensure(tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_cache_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ModelBuildError, match="BROWNOUT_CACHE_DIR"):
        ensure(blocked)


def test_command_prints_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROWNOUT_CACHE_DIR", str(tmp_path))
    ran = subprocess.run([sys.executable, "-m", "cluster.model"], capture_output=True, text=True, check=True)
    assert build.is_whole(Path(ran.stdout.strip()))
