"""The commands of `trimtab`, one module for each; `dispatch` finds them."""
