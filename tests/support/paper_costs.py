"""What a paper says that its search cost: known figures for savings and for pages that show them."""

from collections.abc import Mapping

from isoloss.savings import SearchCost

PAPER_COSTS: Mapping[str, SearchCost] = {
    "dense-8b": SearchCost(direct_flops=1.02e22, proxy_flops=8.15e20),
    "moe-3b": SearchCost(direct_flops=3.03e21, proxy_flops=8.15e20),
}
"""Zhou et al., comparison of search costs: nine runs of the target against the grids of the proxies."""
