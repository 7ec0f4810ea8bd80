"""The commands, each a function under its own name; `meshwright.cli.COMMANDS` lists them."""
