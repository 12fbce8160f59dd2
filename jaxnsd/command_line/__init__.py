"""``python -m jaxnsd``: the commands and the demo."""
