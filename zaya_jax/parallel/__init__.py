"""Many devices: the mesh, which of its axes splits what, and the layers that exchange data."""
