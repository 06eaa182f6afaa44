"""`python -m holdfast.demo [DSN]`, the same as `holdfast demo`."""

import sys

from holdfast.demo import main

sys.exit(main(*sys.argv[1:2]))
