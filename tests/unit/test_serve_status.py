"""The parser of Ray Serve's REST answer, on answers that a real Serve gave."""

from __future__ import annotations

import json

import pytest

from cluster.links.serve_status import ServeStatusError, Target, parse
from tests.fakes.serve_rest import FakeReplica, answer, recorded


def test_all_running_replicas_are_targets_of_their_application() -> None:
    status = parse(recorded("steady"))
    assert [(target.app, target.upstream) for target in status.running] == [
        ("llm", "127.0.0.1:33000"),
        ("llm", "127.0.0.1:33001"),
        ("llm", "127.0.0.1:33002"),
        ("tool", "127.0.0.1:33003"),
    ]
    assert {target.replica_id for target in status.running} == status.present
    assert status.known
    assert status.settled


def test_serves_own_proxy_is_no_target() -> None:
    raw = json.loads(recorded("tool_starting"))
    assert any("PROXY" in target["name"] for group in raw["target_groups"] for target in group["targets"])
    status = parse(recorded("tool_starting"))
    assert {target.app for target in status.running} == {"llm"}
    assert not status.settled


def test_a_killed_replica_is_gone_and_its_replacement_is_present_before_it_runs() -> None:
    before, after = parse(recorded("steady")), parse(recorded("replica_killed"))
    lost = {target.replica_id for target in before.running} - {target.replica_id for target in after.running}
    assert len(lost) == 1
    assert not lost & after.present
    assert len(after.present) == len(before.present)
    assert not after.settled


def test_a_replacement_has_another_id_and_another_port() -> None:
    before, after = parse(recorded("steady")), parse(recorded("replica_replaced"))
    (fresh,) = set(after.running) - set(before.running)
    assert fresh.upstream not in {target.upstream for target in before.running}


def test_a_restarted_controller_lists_no_target_but_its_replicas_are_recovering() -> None:
    status = parse(recorded("controller_restarted"))
    assert status.known
    assert status.running == ()
    assert len(status.recovering) == 4


def test_an_answer_without_a_controller_is_not_known() -> None:
    assert not parse(recorded("no_serve")).known


def test_no_application_is_an_empty_list() -> None:
    status = parse(recorded("no_application"))
    assert status.known
    assert status.running == ()


def test_host_replaces_the_address_that_ray_names() -> None:
    body = answer(FakeReplica("a", 30000, ip="192.0.2.2"))
    assert parse(body, host="127.0.0.1").running == (Target("llm", "a", "127.0.0.1:30000"),)
    assert parse(body).running == (Target("llm", "a", "192.0.2.2:30000"),)


def test_an_ipv6_address_is_bracketed() -> None:
    assert parse(answer(FakeReplica("a", 30000, ip="::1"))).running[0].upstream == "[::1]:30000"


def test_grpc_targets_are_left_out() -> None:
    raw = json.loads(answer(FakeReplica("a", 30000)))
    raw["target_groups"][0]["protocol"] = "gRPC"
    assert parse(json.dumps(raw).encode()).running == ()


@pytest.mark.parametrize(
    "body", [b"", b"nonsense", b"[]", b'{"controller_info": {"a": 1}, "target_groups": [{"targets": [{}]}]}']
)
def test_anything_else_is_an_error(body: bytes) -> None:
    with pytest.raises(ServeStatusError):
        parse(body)
