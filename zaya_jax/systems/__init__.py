"""The machine and the job on it: sizing, planning, measuring, launching and keeping a run alive."""
