"""Labels of your own: a table of them -> samples -> a head -> a verdict -> predictions."""
