"""``python -m cluster.model`` builds the models that will be served, when missing, and prints a folder a line."""

from __future__ import annotations

import sys

from cluster.model.build import ModelBuildError, ensure
from cluster.served import built_here
from cluster.settings import SettingsError, current


def main() -> int:
    """Print the folders; exit code 3 and one line on stderr when it cannot be built."""
    try:
        settings = current()
        for model in built_here(settings):
            print(ensure(settings.cache_path, model))
    except (ModelBuildError, SettingsError) as error:
        print(f"model: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
