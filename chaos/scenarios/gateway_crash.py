"""The gateway is killed while it holds streams, transfers and jobs, and is started again some seconds later."""

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

GATEWAY_CRASH = Experiment(
    name="gateway_crash",
    question=(
        "When the gateway is killed with streams, transfers and jobs under way, is every caller who repeats with the "
        "same key answered, is every job that was accepted done, and does no transfer happen twice?"
    ),
    load=Load(
        share=0.35,
        classes=(
            CallClass(
                "transfer",
                share=0.45,
                prompt_tokens=(30, 60),
                output_tokens=(8, 12),
                stream_share=0.5,
                # A key whose holder has died stays claimed until the lease runs out.
                client_deadline_s=30.0,
                transfer=True,
                repeats=True,
            ),
            CallClass(
                "chat",
                share=0.3,
                prompt_tokens=(30, 60),
                output_tokens=(16, 24),
                stream_share=1.0,
                client_deadline_s=30.0,
                repeats=True,
            ),
            CallClass(
                "summary",
                share=0.25,
                prompt_tokens=(30, 60),
                output_tokens=(8, 12),
                stream_share=0.0,
                service_class="summary",
                priority="sheddable_plus",
                client_deadline_s=30.0,
                repeats=True,
                respond_async=True,
                result_within_s=45.0,
            ),
        ),
    ),
    faults=(FaultPlan("kill_gateway", "gateway"),),
    objectives=(
        Objective("success_rate", 1.0),
        Objective("effects_once", 1.0, call_class="transfer"),
    ),
    counted="held_by_gateway",
    minimum_counted=20,
    phases=Phases(warm_up_s=2.0, steady_s=2.0, hold_s=4.0, recovery_s=6.0),
    arms=(CONTROL, Arm("once", "resilient", fault=True, role="naive", clients="once"), RESILIENT),
)
