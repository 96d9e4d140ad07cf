"""Two tenants ask the same questions in a burst: the cache carries them, and gives nobody what is another's or was."""

from __future__ import annotations

from chaos.experiment import (
    CONTROL,
    RESILIENT,
    Arm,
    CallClass,
    Experiment,
    FaultPlan,
    Load,
    Objective,
    Phases,
)

PROMPT_TOKENS, OUTPUT_TOKENS = (40, 80), (20, 30)
QUESTIONS = 16
"""So many different ones; every caller asks the same."""

TENANTS = """
[classes.faq]
priority = "critical"
cacheable = true

[tenants.acme]
classes = ["faq"]

[tenants.globex]
classes = ["faq"]
"""


def _asking(name: str, api_key: str, share: float, surge_share: float) -> CallClass:
    return CallClass(
        name,
        share=share,
        surge_share=surge_share,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        stream_share=0.5,
        client_deadline_s=5.0,
        service_class="faq",
        api_key=api_key,
        prompts=QUESTIONS,
    )


CACHE_ISOLATION = Experiment(
    name="cache_isolation",
    question=(
        "When two tenants ask the same questions at twice the capacity, while the model's revision changes and a key "
        "is revoked, does the cache carry them, and does nobody get what is another tenant's, of another revision, or "
        "no longer theirs?"
    ),
    load=Load(
        share=0.4,
        classes=(
            _asking("acme", "acme-web", 0.4, 0.5),
            _asking("globex", "globex-web", 0.4, 0.5),
            _asking("leaver", "acme-leaver", 0.2, 0.0),
        ),
    ),
    faults=(
        FaultPlan("burst", "client", settings={"times": 5.0}),
        FaultPlan("new_revision", "gateway"),
        FaultPlan("revoke_key", "acme-leaver"),
    ),
    objectives=(
        Objective("success_rate", 0.99, call_class="acme"),
        Objective("success_rate", 0.99, call_class="globex"),
    ),
    counted="hold_window",
    minimum_counted=40,
    phases=Phases(warm_up_s=2.0, steady_s=3.0, hold_s=6.0, recovery_s=1.0),
    # What the cache carries is shown by clients who want every answer computed.
    arms=(CONTROL, Arm("no_cache", "resilient", fault=True, role="naive", clients="no_cache"), RESILIENT),
    tenants=TENANTS,
    keys={"acme-web": "acme/web", "acme-leaver": "acme/leaver", "globex-web": "globex/web"},
    # Room for about half of a tenant's answers, so that they press each other out.
    gateway={"BROWNOUT_CACHE_TENANT_BYTES": "6000", "BROWNOUT_CACHE_MEMORY_BYTES": "12000"},
)
