"""How long a run waits for what it waits for. Everything is bounded, so that every run ends."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bounds:
    """Longest waits and lengths outside the scenario's own phases, in seconds."""

    settle_s: float = 1.5
    """Load before a calibration looks at the replicas' queues."""
    window_s: float = 7.0
    """Length of a calibration's window."""
    return_s: float = 180.0
    """From a revert until the lost replica's successor takes load."""
    calm_s: float = 20.0
    """Until the gateway has forgotten the load that came before an arm."""
    quiet_s: float = 30.0
    """Until nothing is in flight, and until nothing is left over."""
    resolve_s: float = 15.0
    """To find a fault's target."""
    fault_limit_s: float = 120.0
    """On top of a scenario's hold: after it a fault is reverted without anybody asking."""
    poll_s: float = 0.25


DEFAULT_BOUNDS = Bounds()
