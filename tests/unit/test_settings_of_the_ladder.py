"""What the settings say of the ladder, and that they know every profile."""

from __future__ import annotations

from typing import get_args

import pytest

from cluster import public
from cluster.gateway.service import profile_settings
from cluster.settings import Settings, SettingsError, load
from policies.ladder import DEFERRED, SHORT_OUTPUT, SMALL_MODEL, ClassRungs


def test_every_profile_can_be_configured() -> None:
    assert set(get_args(Settings.model_fields["profile"].annotation)) == set(public.PROFILES)


def test_classes_are_told_how_far_down_they_go() -> None:
    settings = load({"BROWNOUT_CLASS_RUNGS": "fraud=full, summary = short_output,"})
    assert settings.rungs_by_class == {"fraud": "full", "summary": SHORT_OUTPUT}
    knobs = profile_settings(settings, {})
    assert knobs.classes["fraud"] == ClassRungs(lowest="full")
    assert knobs.classes["summary"] == ClassRungs(by_level=SHORT_OUTPUT, lowest=SHORT_OUTPUT)
    knobs = profile_settings(load({"BROWNOUT_CLASS_RUNGS": "summary=deferred"}), {})
    assert knobs.classes["summary"] == ClassRungs(by_level=SMALL_MODEL, lowest=DEFERRED)


@pytest.mark.parametrize("value", ["fraud", "fraud=", "=full", "fraud=half", "fraud=refuse", "a=full,b"])
def test_a_rung_that_does_not_exist_is_named(value: str) -> None:
    with pytest.raises(
        SettingsError, match=r"BROWNOUT_CLASS_RUNGS.*class_rungs.*one of|CLASS=RUNG"
    ) as caught:
        load({"BROWNOUT_CLASS_RUNGS": value})
    assert "short_output" in str(caught.value)


@pytest.mark.parametrize(("dwell_s", "known"), [(0.25, True), (0.2, False)])
def test_the_ladder_cannot_be_told_to_go_up_faster_than_down(dwell_s: float, known: bool) -> None:
    if known:
        assert profile_settings(Settings(ladder_dwell_s=dwell_s), {}).ladder.dwell_s == dwell_s
    else:
        with pytest.raises(SettingsError, match="ladder_dwell_s"):
            load({"BROWNOUT_LADDER_DWELL_S": str(dwell_s)})
