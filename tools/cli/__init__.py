"""The commands of `flettner`, one module for each; `dispatch` finds them."""
