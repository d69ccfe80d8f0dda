"""The judge: `canary` compares green with blue, `blocks` values that take turns; here is what both share."""
