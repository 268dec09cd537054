"""Command line: `python -m devcluster {build,up,down,status,env,node,reap}`."""

import sys

from devcluster.cli import main

sys.exit(main())
