"""The store cannot be used: what must be recorded is refused, nothing is half done, and all is well when it is back."""

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

STORE_DOWN = Experiment(
    name="store_down",
    question=(
        "When the store cannot be used for six seconds, is everything refused with a time to come back, is nothing "
        "half done, and is every caller who comes back with the same key answered, each transfer done once?"
    ),
    load=Load(
        share=0.25,
        classes=(
            CallClass(
                "transfer",
                share=0.4,
                prompt_tokens=(30, 60),
                output_tokens=(8, 12),
                stream_share=0.5,
                client_deadline_s=18.0,
                transfer=True,
                repeats=True,
            ),
            CallClass(
                "chat",
                share=0.6,
                prompt_tokens=(30, 60),
                output_tokens=(8, 12),
                client_deadline_s=18.0,
                repeats=True,
            ),
        ),
    ),
    faults=(FaultPlan("store_down", "store"),),
    objectives=(
        Objective("success_rate", 1.0),
        Objective("effects_once", 1.0, call_class="transfer"),
    ),
    counted="hold_window",
    minimum_counted=20,
    phases=Phases(warm_up_s=2.0, steady_s=2.0, hold_s=6.0, recovery_s=3.0),
    # No policy can answer without a record. What helps is a client who comes back, and that is what the arms differ in.
    arms=(CONTROL, Arm("once", "resilient", fault=True, role="naive", clients="once"), RESILIENT),
)
