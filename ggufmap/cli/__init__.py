"""The command line: one file per command, one error table, one output sink."""
