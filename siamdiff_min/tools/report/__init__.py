"""A page that shows a run, or compares several."""
