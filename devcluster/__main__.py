"""Command line: `python -m devcluster {build,up,down,status,env,logs,node,reap}`."""

import sys

from devcluster.cli import main

sys.exit(main())
