"""Command line: one thin file per subcommand; heavy imports wait until a command needs them."""
