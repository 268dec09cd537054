"""The paper's route: tokens to a loss, the vertex of each level, the frontier of least compute, three laws."""
