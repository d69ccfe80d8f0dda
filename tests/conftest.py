"""How hypothesis works on a machine that others use too: no deadlines; in CI the same examples each time."""

import os

from hypothesis import settings

settings.register_profile("trimtab", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("trimtab")
