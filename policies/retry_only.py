"""The profile ``retry-only``: what most people deploy, with the knobs that most people leave it with.

Up to five attempts at once after each other, a time-out on the whole attempt, replicas in turn, and nothing that
asks whether there is room for any of it. It helps against the loss of one replica. Under load it is what keeps an
overload alive after its cause has gone: every call that times out comes back five times, and the work of those
that were cut is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from policies.backoff import Constant
from policies.parts import ProfileSettings
from policies.timeouts import TimeoutSettings

NAME: Final = "retry-only"
POLICIES: Final = ("retry", "timeouts")
PROTECTS: Final = "the loss of one replica, at the price of retry storms"


def eagerly(knobs: ProfileSettings) -> ProfileSettings:
    """Return the knobs with those of this profile in place of the careful ones."""
    eager = knobs.eager
    return replace(
        knobs,
        max_attempts=eager.max_attempts,
        backoff=Constant(eager.wait_s),
        timeouts=TimeoutSettings.whole(eager.attempt_s),
    )
