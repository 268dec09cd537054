"""From runs to smoothed trajectories and (N, D) cells: what both routes read."""
