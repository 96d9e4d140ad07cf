"""``python -m cluster.model`` builds the model when it is missing and prints its folder."""

from __future__ import annotations

import sys

from cluster.model.build import ModelBuildError, ensure
from cluster.settings import SettingsError, current


def main() -> int:
    """Print the folder; exit code 3 and one line on stderr when it cannot be built."""
    try:
        print(ensure(current().cache_path))
    except (ModelBuildError, SettingsError) as error:
        print(f"model: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
