"""Options that are read before torch is loaded, so that a wrong table is named at once (`cli.py`)."""

TABLE_OPTIONS = {  # of `finetune --task table`, as arguments of argparse
    "labels": {"help": "file of labels for the structures of --data"},
    "name_column": {"help": "column of the names (default: name, or the first)"},
    "value_column": {"help": "columns of the values (default: value)", "nargs": "+"},
    "missing": {"help": "further words for a value that was not measured, such as n.d.", "nargs": "+"},
}
