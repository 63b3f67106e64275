"""Where proteins and labelled samples come from: structure files and archives, the store built from them, crops."""
