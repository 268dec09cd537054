"""Do five short probes move the laws' answer for the demo's checkpoint towards its measured optimum?"""
