"""`python -m infra_agent`."""

import sys

from infra_agent.cli import main

sys.exit(main())
