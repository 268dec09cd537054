"""The sequential search of a sweep: what it is asked, what it answers, what that changes in the ledger.

What it decides is isoloss.search, which runs in the process of a fit.
"""
