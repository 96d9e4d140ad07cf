"""The second, smaller model: what is served, on which links, and who sees its replicas."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import pytest

from cluster import engine, pacing
from cluster.gateway.replicas import Discovery, Link, Links
from cluster.gateway.service import profile_settings
from cluster.links.records import ProxySeen
from cluster.model import build
from cluster.served import OWN_MODEL_KV_BYTES, built_here, deployed, served
from cluster.settings import Settings, SettingsError, load
from policies.fleet import Fleet
from policies.isolation import IsolationSettings
from tests.fakes.link_world import LinkWorld, status, target

SMALL = "llm-small"


def options(settings: Settings, size: str) -> dict[str, str]:
    found = engine.arguments(settings, "small" if size == "small" else "full")
    return dict(one.removeprefix("--").partition("=")[::2] for one in found)


def test_none_is_deployed_by_default() -> None:
    settings = Settings()
    assert settings.small_replicas == 0
    assert [one.name for one in built_here(settings)] == ["model"]
    assert deployed(settings) == {"small_replicas": 0, "small_model": ""}


def test_cache_holds_as_many_tokens_as_that_of_the_first_model() -> None:
    settings = Settings(small_replicas=1)
    assert served(settings).kv_tokens == served(settings, "small").kv_tokens == 12_288
    assert served(Settings(kv_cache_bytes=8 * 1024 * 1024), "small").kv_tokens == 2048
    assert deployed(settings) == {"small_replicas": 1, "small_model": "brownout-tiny-small"}


def test_policies_are_told_what_the_cache_holds() -> None:
    usable = Settings().usable_cache_tokens
    assert usable == int(0.9 * 12_288)
    knobs = profile_settings(Settings(), {})
    assert knobs.admission.most_active_tokens == usable
    assert knobs.isolation.most_active_tokens == usable // 2
    unknown = profile_settings(Settings(model="org/big"), {})
    assert unknown.admission.most_active_tokens is None
    assert unknown.isolation == IsolationSettings()


def test_capacity_of_a_users_own_model_is_for_the_engine_to_say() -> None:
    settings = Settings(model="org/big", small_model="org/little", small_replicas=1)
    assert served(settings).kv_tokens is None
    assert served(settings, "small").kv_tokens is None
    assert served(settings, "small").kv_cache_bytes == OWN_MODEL_KV_BYTES
    assert built_here(settings) == []


def test_engine_gets_the_smaller_model_its_name_and_its_pace(tmp_path: Path) -> None:
    settings = Settings(cache_dir=tmp_path, small_replicas=1, small_pace_base_s=0.01)
    small, full = options(settings, "small"), options(settings, "full")
    assert build.is_whole(Path(small["model"]), build.SMALL_SHA256)
    assert build.is_whole(Path(full["model"]))
    assert (small["served-model-name"], full["served-model-name"]) == ("brownout-tiny-small", "brownout-tiny")
    assert int(small["kv-cache-memory-bytes"]) == int(full["kv-cache-memory-bytes"]) / 4
    assert '"base_s": 0.01' in small["additional-config"]
    assert '"base_s": 0.04' in full["additional-config"]
    same = {"model", "served-model-name", "kv-cache-memory-bytes", "additional-config"}
    assert {k: v for k, v in small.items() if k not in same} == {
        k: v for k, v in full.items() if k not in same
    }


def test_unpaced_stays_unpaced() -> None:
    assert pacing.Pace.of(Settings(pace="off"), 0.01) is None


def test_own_model_needs_a_smaller_one_of_its_own(tmp_path: Path) -> None:
    environment = {"BROWNOUT_MODEL": "org/big", "BROWNOUT_SMALL_REPLICAS": "1"}
    with pytest.raises(SettingsError, match=r"'small_replicas' has value '1': .*set small_model too"):
        load(environment, tmp_path)
    load(environment | {"BROWNOUT_SMALL_MODEL": "org/little"}, tmp_path)


def test_two_models_need_two_names(tmp_path: Path) -> None:
    environment = {"BROWNOUT_SMALL_MODEL_NAME": "brownout-tiny", "BROWNOUT_SMALL_REPLICAS": "1"}
    with pytest.raises(SettingsError, match="set small_model_name to another one"):
        load(environment, tmp_path)


def test_links_of_both_kinds_have_slots_of_their_own() -> None:
    world = LinkWorld()
    world.look()
    world.serve(status(target("aaaaa", 30000), target("bbbbb", 30001, SMALL), target("ccccc", 30002)))
    world.settle()
    listed = [(link.name, link.kind) for link in world.book.links if link.kind != "client"]
    assert listed == [
        ("replica-0.aaaaa", "replica"),
        ("replica-1.ccccc", "replica"),
        ("small-0.bbbbb", "replica_small"),
    ]
    assert len({link.port for link in world.book.links}) == 4


def test_lost_small_replica_leaves_and_its_successor_takes_the_slot() -> None:
    world = LinkWorld()
    world.look()
    world.serve(status(target("aaaaa", 30000), target("bbbbb", 30001, SMALL)))
    world.settle()
    world.serve(status(target("aaaaa", 30000), target("ddddd", 30002, SMALL)))
    world.settle()
    assert [link.name for link in world.book.links if link.kind == "replica_small"] == ["small-0.ddddd"]
    assert [link.name for link in world.replicas] == ["replica-0.aaaaa"]


def test_restarted_service_takes_over_links_of_both_kinds() -> None:
    proxies = {
        "replica-0.aaaaa": ProxySeen(21003, "127.0.0.1:30000"),
        "small-0.bbbbb": ProxySeen(21004, "127.0.0.1:30001"),
        "small-1.zzzzz": ProxySeen(21005, "127.0.0.1:30009"),
    }
    world = LinkWorld(proxies=proxies)
    world.look()
    world.serve(status(target("aaaaa", 30000), target("bbbbb", 30001, SMALL)))
    world.settle()
    ports = {link.name: link.port for link in world.book.links if link.kind.startswith("replica")}
    assert ports == {"replica-0.aaaaa": 21003, "small-0.bbbbb": 21004}
    assert "small-1.zzzzz" not in world.proxies


def test_another_model_on_the_address_of_a_replica_is_another_link() -> None:
    world = LinkWorld()
    world.look()
    world.serve(status(target("aaaaa", 30000)))
    world.settle()
    world.serve(status(target("aaaaab", 30000, SMALL)))
    world.settle()
    assert world.replicas == []
    assert [link.label for link in world.book.links if link.kind == "replica_small"] == ["small-0"]


async def test_gateway_keeps_two_fleets() -> None:
    fleet, small = Fleet(), Fleet()
    async with aiohttp.ClientSession() as session:
        discovery = Discovery("http://links", fleet, session, tool_address="t:1", small_fleet=small)
        links = [
            Link(name="replica-0.a", kind="replica", listen="h:1"),
            Link(name="small-0.b", kind="replica_small", listen="h:2"),
            Link(name="tool", kind="tool", listen="h:3"),
        ]
        discovery.take(Links(version=1, links=links))
        assert [(one.name, one.address) for one in fleet.replicas] == [("replica-0.a", "h:1")]
        assert [(one.name, one.address) for one in small.replicas] == [("small-0.b", "h:2/small")]
        Discovery("http://links", fleet, session, tool_address="t:1").take(Links(version=2, links=links))
        discovery.take(Links(version=3, links=links[:1]))
        assert small.replicas == ()
