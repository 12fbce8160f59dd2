"""Systems: what a user writes and what is derived from it; laws of impact and friction; outcomes of a step."""
