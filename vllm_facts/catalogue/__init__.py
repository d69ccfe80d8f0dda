"""The meaning of each flag of `vllm serve`: one TOML file for each subject, and the code that reads it."""
