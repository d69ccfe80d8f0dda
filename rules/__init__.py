"""The order in which the rules of lint and of policies are followed, and the slug of each rule."""
