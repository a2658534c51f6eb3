"""Environments that verify themselves: each samples problems and scores responses."""
