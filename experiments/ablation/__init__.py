"""Comparisons of variants: grids of arms and seeds, matched sizes, tables and curves."""
