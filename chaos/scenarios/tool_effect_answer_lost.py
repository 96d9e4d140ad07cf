"""A tool acts and its answers are lost: does anything happen twice, and does every caller learn the truth?"""

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

TOOL_EFFECT_ANSWER_LOST = Experiment(
    name="tool_effect_answer_lost",
    question=(
        "When a tool does what it is asked and its answers are lost for five seconds, does every transfer happen once, "
        "and does every caller who repeats the request with its key learn that it did?"
    ),
    load=Load(
        share=0.25,
        classes=(
            CallClass(
                "transfer",
                share=0.6,
                prompt_tokens=(30, 60),
                output_tokens=(8, 12),
                stream_share=0.5,
                # Longer than the fault: who asks in its first moment still has time to hear the truth after it.
                client_deadline_s=16.0,
                transfer=True,
                repeats=True,
            ),
            CallClass(
                "chat", share=0.4, prompt_tokens=(30, 60), output_tokens=(8, 12), client_deadline_s=10.0
            ),
        ),
    ),
    faults=(FaultPlan("tool_lose_answer", "tool"),),
    objectives=(
        Objective("effects_once", 1.0, call_class="transfer"),
        Objective("success_rate", 1.0, call_class="transfer"),
        Objective("success_rate", 1.0, call_class="chat"),
    ),
    counted="hold_window",
    minimum_counted=20,
    phases=Phases(warm_up_s=2.0, steady_s=2.0, hold_s=5.0, recovery_s=2.0),
    # The policies are on in both: what the keys are worth is shown by clients who take a new one for each try.
    arms=(CONTROL, Arm("new_keys", "resilient", fault=True, role="naive", clients="new_keys"), RESILIENT),
)
