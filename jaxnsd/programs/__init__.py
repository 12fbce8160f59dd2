"""Functions as programs: what of a system is data, rules of derivatives that loops keep, runs and batches of them, programs on disk."""
