"""An integrator of another kind, to hold the schemes against. It imports nothing from the library."""
