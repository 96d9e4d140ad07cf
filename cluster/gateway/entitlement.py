"""Who may be answered at which rung of the ladder, by what the tenants file says at that moment.

The ladder asks right before it uses a rung, so that a key that was revoked while its call waited reaches neither
another model nor an earlier answer; and only this leads to the smaller model, never the size of a prompt.
"""

from __future__ import annotations

from cluster.gateway.identity import Identity
from cluster.gateway.tenants import Tenants
from policies.call import Call
from policies.errors import FailedClosed


class Entitlement:
    """Answers the ladder (:data:`policies.degradation.Entitled`); ``small_model`` is the name of the smaller model."""

    def __init__(self, tenants: Tenants, small_model: str) -> None:
        self._tenants = tenants
        self._small_model = small_model

    def __call__(self, call: Call, rung: str) -> bool:
        """Tell whether the caller may be answered at that rung; where nobody can tell, they may not."""
        if not isinstance(call.caller, Identity):
            return False
        try:
            now = self._tenants.current(call.caller)
        except FailedClosed:
            return False
        return now is not None and now.reaches(rung, call.service_class, self._small_model)
