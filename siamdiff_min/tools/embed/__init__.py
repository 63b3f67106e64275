"""The command that writes vectors of many structures."""
