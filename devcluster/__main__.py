"""Command line: `python -m devcluster {build,env,node,reap}`."""

import sys

from devcluster.cli import main
from devcluster.ports import pass_proxies_by

pass_proxies_by()
sys.exit(main())
