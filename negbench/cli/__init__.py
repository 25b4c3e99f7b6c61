"""The command line: one subcommand per file, thin; nothing heavy is imported before a command needs it."""
