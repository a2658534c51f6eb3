"""Configurations of the jobs, as functions that return a ConfigDict."""
