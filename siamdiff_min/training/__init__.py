"""How training runs: options and presets, the loop for one process or many, checkpoints."""
