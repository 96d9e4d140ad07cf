"""The small model that the project builds instead of downloading one.

Experiments need a real engine and varied text, not a clever model. A Llama of 3.7 million seeded random
parameters gives both, has the same bytes on every machine, and is there two seconds after the first start.
"""

from cluster.model.build import ModelBuildError, ensure, ensure_text

__all__ = ["ModelBuildError", "ensure", "ensure_text"]
