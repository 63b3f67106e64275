"""From labels to samples: the data of the downstream tasks."""
