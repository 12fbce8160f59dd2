"""The driver: what input must be, the loop over the steps, solutions, single contact problems."""
