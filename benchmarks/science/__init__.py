"""The law engine against simpler ways to a learning rate and a batch size, over many splits of many sweeps."""
