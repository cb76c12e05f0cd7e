"""Older versions of the contract, one folder each: what test_growth.py holds this version to."""
